"""How far rows of an upload lean towards each of some candidates, class by class or mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import least_bound, noise_std
from fedre_privacy.core.artifacts import Artifact, EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Channel, Noise

from .class_statistics import ClassStatistics, log_likelihoods, tracing_score
from .joint_test import joint_odds

WHOLE = 0.999
"""Of a bound: rows that are shorter were not shortened."""
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class View:
    """Candidates of one client as seen by the extractor of one round.

    Shape: reps (m, d), labels (m,), samples (G, C), strangers (n, d) whitened reference images.
    """

    reps: Tensor
    labels: Tensor
    statistics: ClassStatistics
    samples: Tensor
    strangers: Tensor
    channel: Channel

    def undo(self, rows: Tensor, expected: Tensor, sent: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows as if they had not been shortened, and the variance of the noise on them.

        Args:
            rows: (n, d), and what they are about, (n, d).
            sent: all rows of the upload.

        Returns:
            Rows (n, d), and variances (n, d) along whitened directions, None without noise.
        """
        noise = sum(noise_std(s, sent) ** 2 for s in self.channel.rows if isinstance(s, Noise))
        bound = least_bound(self.channel.rows)
        factor = torch.ones(len(rows), 1).double()
        if bound is not None:
            factor = (bound / expected.norm(dim=1, keepdim=True).clamp(min=TINY)).clamp(max=1)
            if not noise:
                whole = rows.norm(dim=1, keepdim=True) < WHOLE * bound
                factor = torch.where(whole, 1.0, factor)
        if not noise:
            return rows / factor, None
        return rows / factor, noise / factor.square() * self.statistics.whiten.square().sum(0)

    @property
    def white(self) -> Tensor:
        return self.statistics.white(self.reps, self.statistics.means[self.labels])

    def only(self, mine: Tensor) -> View:
        """Some of the candidates."""
        return replace(self, reps=self.reps[mine], labels=self.labels[mine])


Reader = Callable[[Artifact, View, bool], Tensor]


def _representations(artifact: Artifact, view: View, traces: bool) -> Tensor:
    """Minus the log-distance to the nearest representation of the same class; NaN for others.

    Where clients draw, the largest log-odds of a representation with the candidate and without.
    """
    sent, statistics = artifact.tensors(), view.statistics
    centres = statistics.means[sent["labels"].long().clamp(0, len(statistics.means) - 1)]
    rows, added = view.undo(sent["reps"].double(), centres, sent["reps"])
    more = 0.0 if added is None else added.mean(0)
    apart = statistics.apart(view.reps, rows, more)
    others = view.labels[:, None] != sent["labels"][None]
    if statistics.noise is None and added is None:
        score = -(apart.masked_fill(others, torch.inf).amin(1) + 1e-6).log()
    else:
        own = (statistics.white(rows, centres).square() / (1 + more)).sum(1)
        score = ((own - apart.square()) / 2).masked_fill(others, -torch.inf).amax(1)
    return torch.where(score.isfinite(), score, torch.nan)


def _prototypes(artifact: Artifact, view: View, traces: bool) -> Tensor:
    """Each candidate against the row of its class; the mean of rows if it has several."""
    means = view.statistics.means
    table, counts = _table(artifact, len(means))
    table, added = view.undo(table, means, artifact.tensors()["means"])
    shift = view.statistics.white(table, means)[view.labels]
    size = view.samples[:, view.labels]
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


def _score_mixed_row(artifact: Artifact, view: View, traces: bool) -> Tensor:
    """Each candidate against the one mixed row, with the weight that its label was sent with."""
    sent = artifact.tensors()
    encoding = sent["encoding"].double()
    centre = encoding @ view.statistics.means
    row, added = view.undo(sent["rep"][None].double(), centre[None], sent["rep"][None])
    shift = view.statistics.white(row, centre[None])[0]
    weight = (encoding / view.samples)[:, view.labels]
    variance = (encoding.square() / view.samples).sum(1, keepdim=True)
    score = _score(shift, view, weight, variance, traces, added)
    return torch.where(encoding[view.labels] > 0, score, torch.nan)


Together = Sequence[tuple[Artifact, View]]


def _class_by_class(together: Together, alike: Tensor) -> Tensor:
    """Each candidate against the rows of its class of all rounds together; NaN where it has none.

    The row of a class is a mixture of that class alone.
    """
    first = together[0][1]
    classes = len(first.statistics.means)
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
            out[mine] = _score_rounds_jointly(rows, alike[:, there][:, :, there])
    return out


def _score_rounds_jointly(together: Together, alike: Tensor) -> Tensor:
    """Each candidate against the mixed rows of all rounds together; NaN where its label is in none.

    Classes and numbers of samples are those of the first round's view, which all rounds share.

    Args:
        alike: correlation between the rounds of each coordinate (d, T, T).
    """
    shifts, rows, encodings = [], [], []
    for artifact, view in together:
        sent, means = artifact.tensors(), view.statistics.means
        encoding = sent["encoding"].double()
        centre = (encoding @ means)[None]
        row, _ = view.undo(sent["rep"][None].double(), centre, sent["rep"][None])
        shifts.append(view.statistics.whiten_symmetrically(row, centre)[0])
        rows.append(view.statistics.whiten_symmetrically(view.reps, means[view.labels]))
        encodings.append(encoding)
    first, mix = together[0][1], torch.stack(encodings)
    odds = joint_odds(
        torch.stack(shifts), torch.stack(rows), first.labels, mix, first.samples, alike
    )
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
TOGETHER: dict[type[Artifact], Callable[[Together, Tensor], Tensor]] = {
    Prototypes: _class_by_class,
    EntangledRep: _score_rounds_jointly,
}
