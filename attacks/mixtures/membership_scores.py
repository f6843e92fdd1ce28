"""How far rows of an upload lean towards each of some candidates, class by class or mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, EntangledRep, Prototypes, Representations

from .candidate_views import View
from .class_statistics import log_likelihoods, tracing_score
from .joint_test import joint_odds

Reader = Callable[[Artifact, View, Tensor, bool], Tensor]
"""(artifact, view, numbers of images of each class (G, C) that are averaged over, tracing score)"""


def _representations(artifact: Artifact, view: View, samples: Tensor, traces: bool) -> Tensor:
    """Minus the log-distance to the nearest representation of the same class; NaN for others.

    Where clients draw, the largest log-odds of a representation with the candidate and without.
    """
    sent, statistics = artifact.tensors(), view.statistics
    classes = sent["labels"].long().clamp(0, len(view.means) - 1)
    rows, _, added = view.undo(sent["reps"], view.means[classes])
    centres = statistics.means[classes]
    more = 0.0 if added is None else added.mean(0)
    apart = statistics.apart(view.reps, rows, more)
    others = view.labels[:, None] != sent["labels"][None]
    if statistics.noise is None and added is None:
        score = -(apart.masked_fill(others, torch.inf).amin(1) + 1e-6).log()
    else:
        own = (statistics.white(rows, centres).square() / (1 + more)).sum(1)
        score = ((own - apart.square()) / 2).masked_fill(others, -torch.inf).amax(1)
    return torch.where(score.isfinite(), score, torch.nan)


def _prototypes(artifact: Artifact, view: View, samples: Tensor, traces: bool) -> Tensor:
    """Each candidate against the row of its class; the mean of rows if it has several."""
    table, counts = _table(artifact, len(view.means))
    table, _, added = view.undo(table, view.means)
    shift = view.statistics.white(table, view.statistics.means)[view.labels]
    size = samples[:, view.labels]
    added = None if added is None else (added / counts.clamp(min=1)[:, None])[view.labels]
    score = _score(shift, view, 1 / size, 1 / size, traces, added)
    return torch.where(counts[view.labels] > 0, score, torch.nan)


def _table(artifact: Artifact, classes: int) -> tuple[Tensor, Tensor]:
    """The mean of the finite rows of each class (C, d), and how many there are (C,)."""
    sent = artifact.tensors()
    usable = sent["means"].isfinite().all(1)
    rows, labels = sent["means"][usable].double(), sent["labels"][usable]
    hot = torch.nn.functional.one_hot(labels.long(), classes).double()
    counts = hot.sum(0)
    return hot.T @ rows / counts.clamp(min=1)[:, None], counts


def _score_mixed_row(artifact: Artifact, view: View, samples: Tensor, traces: bool) -> Tensor:
    """Each candidate against the one mixed row, with the weight that its label was sent with."""
    sent = artifact.tensors()
    encoding = sent["encoding"].double()
    row, _, added = view.undo(sent["rep"][None], (encoding @ view.means)[None])
    shift = view.statistics.white(row, (encoding @ view.statistics.means)[None])[0]
    weight = (encoding / samples)[:, view.labels]
    variance = (encoding.square() / samples).sum(1, keepdim=True)
    score = _score(shift, view, weight, variance, traces, added)
    return torch.where(encoding[view.labels] > 0, score, torch.nan)


Together = Sequence[tuple[Artifact, View]]


def _class_by_class(together: Together, samples: Tensor, alike: Tensor) -> Tensor:
    """Each candidate against the rows of its class of all rounds together; NaN where it has none.

    The row of a class is a mixture of that class alone.
    """
    first = together[0][1]
    classes = len(first.means)
    tables = [_table(artifact, classes) for artifact, _ in together]
    out = torch.full((len(first.labels),), torch.nan, dtype=torch.float64)
    for label in first.labels.unique().tolist():
        mine = first.labels == label
        there = [i for i, (_, counts) in enumerate(tables) if counts[label] > 0]
        alone = torch.nn.functional.one_hot(torch.tensor(label), classes).double()
        rows: Together = [
            (EntangledRep(tables[i][0][label], alone), together[i][1].only(mine)) for i in there
        ]
        if rows:
            out[mine] = _score_rounds_jointly(rows, samples, alike[:, there][:, :, there])
    return out


def _score_rounds_jointly(together: Together, samples: Tensor, alike: Tensor) -> Tensor:
    """Each candidate against the mixed rows of all rounds together; NaN where its label is in none.

    Classes are those of the first round's view, which all rounds share.

    Args:
        alike: correlation between the rounds of each coordinate (d, T, T).
    """
    shifts, rows, encodings = [], [], []
    for artifact, view in together:
        sent, means = artifact.tensors(), view.statistics.means
        encoding = sent["encoding"].double()
        row, _, _ = view.undo(sent["rep"][None], (encoding @ view.means)[None])
        shifts.append(view.statistics.whiten_symmetrically(row, (encoding @ means)[None])[0])
        rows.append(view.statistics.whiten_symmetrically(view.reps, means[view.labels]))
        encodings.append(encoding)
    first, mix = together[0][1], torch.stack(encodings)
    odds = joint_odds(torch.stack(shifts), torch.stack(rows), first.labels, mix, samples, alike)
    return torch.where(mix[:, first.labels].amax(0) > 0, odds, torch.nan)


def _score(
    shift: Tensor,
    view: View,
    weight: Tensor,
    variance: Tensor,
    traces: bool,
    added: Tensor | None,
) -> Tensor:
    """Turn whitened deviations into one score per candidate, averaging over unknown sizes."""
    if traces:
        return tracing_score(shift, view.white, (weight / variance)[len(weight) // 2])
    member, other = log_likelihoods(
        shift, view.white, weight, variance, view.statistics.noise, added
    )
    return member.logsumexp(0) - other.logsumexp(0)


READERS: dict[type[Artifact], Reader] = {
    Representations: _representations,
    Prototypes: _prototypes,
    EntangledRep: _score_mixed_row,
}
TOGETHER: dict[type[Artifact], Callable[[Together, Tensor, Tensor], Tensor]] = {
    Prototypes: _class_by_class,
    EntangledRep: _score_rounds_jointly,
}
