"""Score representations of single images that were worked out of statistics over several.

Within a client and class answers are matched with true representations one to one, at the least
sum of relative errors. Pure functions of tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from fedre_privacy.core.outcomes import RecoveredRepresentations

from .confidence import PRECISION, certificate_measures
from .floors import cross_fit
from .measures import COMPARISON, TABLE, Card, Measure, Verdict, by_size, over_floor, p_values
from .verdict import ERROR, LEAKS, MARGIN_SHARE, MIN_CLIENTS, OPEN_RULE, holm, verdict_of_clients

WITHIN = 0.01
"""Relative error of an answer that counts as found."""
FLOORS = {
    "class mean": "the mean of the class's images behind the upload as the answer for each",
    "public": "the nearest representation of a public image of the class, which the evaluator "
    "chose with the truth in hand",
}
"""Answers that need no attack."""
FOUND = Measure(
    key="representations_found",
    title="representations found",
    definition=f"share of true representations with an answer of their own within {WITHIN:.0%} "
    "(relative error)",
    percent=True,
    bounds=(0.0, 1.0),
    margin=MARGIN_SHARE,
    shown=COMPARISON,
)
ERRORS = Measure(
    key="representation_error",
    title="relative error",
    definition="||x - x'|| / ||x'||, x' the true representation; one without an answer counts as "
    "the class mean",
    higher_is_more_leakage=False,
    shown=TABLE,
)
PRECISE = dataclasses.replace(
    PRECISION,
    definition=f"share of certified answers with a relative error of at most {WITHIN:g}, beside "
    "that of all answers",
    floor_name="all answers",
    against="all answers",
)
RULE = (
    f"leaks: more representations are found than by the floor (one-sided test over clients at a "
    f"level of {100 * ERROR:g} %); {OPEN_RULE}, or fewer than {MIN_CLIENTS} clients"
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TrueRepresentations:
    """The true representations behind statistics, and answers that need no attack.

    Shape: vectors (M, d); clients, labels (M,); counts (M,) images behind the same statistics;
    floors: "class mean" and "public" to (M, d), those that there are.
    """

    vectors: Tensor
    clients: Tensor
    labels: Tensor
    counts: Tensor
    floors: Mapping[str, Tensor]


def match_answers(
    truth: Tensor, truth_keys: Tensor, answers: Tensor, answer_keys: Tensor
) -> Tensor:
    """Which answer (M,) stands for each true vector, -1 for none.

    Args:
        truth: (M, d). answers: (N, d), those not finite left out.
        truth_keys, answer_keys: (M,) and (N,) int64; only equal ones are matched.
    """
    out = torch.full((len(truth),), -1, dtype=torch.int64)
    usable = answers.isfinite().all(1)
    for key in truth_keys.unique():
        rows = (truth_keys == key).nonzero().squeeze(1)
        columns = ((answer_keys == key) & usable).nonzero().squeeze(1)
        if not len(columns):
            continue
        lengths = truth[rows].double().norm(dim=1, keepdim=True).clamp(min=1e-12)
        apart = torch.cdist(truth[rows].double(), answers[columns].double()) / lengths
        row, column = scipy.optimize.linear_sum_assignment(apart.clamp(max=1e6).numpy())
        out[rows[torch.from_numpy(row)]] = columns[torch.from_numpy(column)]
    return out


def keys(clients: Tensor, labels: Tensor) -> Tensor:
    """One number (N,) for each pair of client and class."""
    return clients * 1_000_000 + labels


def evaluate_representations(outcome: RecoveredRepresentations, truth: TrueRepresentations) -> Card:
    """Compare what was found with the true representations of the same client and class.

    One that has no answer is not found, and its error is that of the class mean.

    Returns:
        A card whose `rows` has one row per true representation.
    """
    matched = match_answers(
        truth.vectors,
        keys(truth.clients, truth.labels),
        outcome.vectors,
        keys(outcome.clients, outcome.labels),
    )
    answered = matched >= 0
    length = truth.vectors.double().norm(dim=1).clamp(min=1e-12)

    def error(answers: Tensor) -> Tensor:
        apart: Tensor = (answers.double() - truth.vectors.double()).norm(dim=1)
        relative: Tensor = apart / length
        return relative

    others = {name: error(vectors) for name, vectors in truth.floors.items()}
    own = torch.full((len(truth.vectors),), torch.nan, dtype=torch.float64)
    if bool(answered.any()):
        placed = truth.vectors.clone()
        placed[answered] = outcome.vectors[matched[answered]]
        own = error(placed).masked_fill(~answered, torch.nan)
    filled = torch.where(answered, own, others["class mean"])
    measures = []
    for group, inside in by_size(truth.counts).items():
        for of, values, floors in (
            (
                FOUND,
                (own <= WITHIN).double(),
                {n: (e <= WITHIN).double() for n, e in others.items()},
            ),
            (ERRORS, filled, others),
        ):
            measures.append(_measure(of, group, inside, values, floors, truth.clients))
    certified = torch.zeros(len(truth.vectors), dtype=torch.bool)
    certified[answered] = outcome.certified[matched[answered]]
    right = own <= WITHIN
    share = float(right[answered].double().mean()) if bool(answered.any()) else None
    measures += certificate_measures(
        certified, right, truth.clients, dataclasses.replace(PRECISE, floor=share)
    )
    rows = {
        "client": truth.clients.tolist(),
        "label": truth.labels.tolist(),
        "images": truth.counts.tolist(),
        "relative_error": own.tolist(),
        "certified": certified.tolist(),
        **{f"relative_error_{name.replace(' ', '_')}": e.tolist() for name, e in others.items()},
    }
    return Card(
        measures=tuple(measures),
        verdict=_verdict(measures, truth, own),
        rows=pd.DataFrame(rows),
        n=int(answered.sum()),
        targets=len(truth.vectors),
        diverged=int((~answered).sum()),
        compared_with="the true representations of the same client and class",
        floors={name: FLOORS[name] for name in truth.floors},
        notes=outcome.notes,
    )


def _measure(
    of: Measure,
    group: str,
    inside: Tensor,
    values: Tensor,
    floors: Mapping[str, Tensor],
    clients: Tensor,
) -> Measure:
    if group:
        of = dataclasses.replace(of, shown=TABLE)
    owners = clients[inside]
    of = dataclasses.replace(
        of, group=group, targets=int(inside.sum()), clients=len(owners.unique())
    )
    floor = cross_fit(
        {name: one[inside] for name, one in floors.items()},
        owners,
        higher_leaks=of.higher_is_more_leakage,
    )
    if floor.name is None:
        return of
    of = dataclasses.replace(of, floors_chosen=floor.counts())
    return over_floor(of, values[inside], floor.values, owners, floor_name=floor.name, group=group)


def _verdict(measures: list[Measure], truth: TrueRepresentations, own: Tensor) -> Verdict:
    found = next(m for m in measures if m.key == FOUND.key and not m.group)
    leaks = bool(holm(p_values([found], (FOUND.key,))))
    said = f"{int((own <= WITHIN).sum())} of {len(own)} representations found within {WITHIN:.0%}"
    if found.floor is not None:
        said += f" ({100 * found.floor:.1f} % with {found.floor_name})"
    clients = len(truth.clients.unique())
    verdict = verdict_of_clients(leaks, (found,), (said,), RULE, clients=clients)
    return verdict if verdict.word != LEAKS else dataclasses.replace(verdict, because=said)
