"""Score recovered prototypes beside answers that need no attack.

Plain cosine misleads: a mixture of a client's prototypes has a cosine near 0.8 to each of them.
So vectors are centred at the mean of the client's true prototypes, and an answer must be nearest
to its own true prototype among those of the client. Pure functions of tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import CERTIFIED_WITHIN, RecoveredPrototypes
from fedre_privacy.core.units import plural

from .confidence import PRECISION, certificate_measures
from .floors import cross_fit, worst_of
from .measures import COMPARISON, TABLE, Card, Measure, Verdict, by_size, over_floor, p_values
from .verdict import (
    ERROR,
    INCONCLUSIVE,
    LEAKS,
    MARGIN_SHARE,
    MIN_CLIENTS,
    OPEN_RULE,
    holm,
    leak_verdict,
    still,
)

FLOORS = {
    "upload": "the client's own upload as the answer for each of its classes",
    "mean": "the mean of the client's recovered vectors (its upload if there are none) as the "
    "answer for each of its classes",
    "public": "the class mean of public images through the client's extractor",
}
"""Answers that need no attack."""

MEASURES = {
    measure.key: measure
    for measure in (
        Measure(
            key="identified",
            title="identification@1",
            definition="share of answers that are nearest (Euclidean) to their own true prototype "
            "among the client's",
            bounds=(0.0, 1.0),
            margin=MARGIN_SHARE,
            shown=COMPARISON,
        ),
        Measure(
            key="centred_cosine",
            title="centred cosine",
            definition="cosine of recovered and true prototype, both less the mean of the client's "
            "true prototypes",
            bounds=(-1.0, 1.0),
            margin=MARGIN_SHARE,
            shown=COMPARISON,
        ),
        Measure(
            key="relative_error",
            title="relative error",
            definition="||p - p'|| / ||p'||, p' the true prototype",
            higher_is_more_leakage=False,
        ),
    )
}
"""The leading one first."""

SMALLEST = Measure(
    key="s_min",
    title="median s_min(W)",
    definition="smallest singular value of the matrix of label weights; 0: the uploads do not "
    "determine the prototypes",
)

FALSE = Measure(
    key="false_classes",
    title="answers for classes not held",
    definition="share of answers that are for a class that the client does not hold; they count in "
    "no other measure",
    percent=True,
    higher_is_more_leakage=False,
    bounds=(0.0, 1.0),
)

PRECISE = dataclasses.replace(
    PRECISION,
    definition="share of certified answers with a relative error of at most "
    f"{CERTIFIED_WITHIN:g}, beside that of all answers",
    floor_name="all answers",
    against="all answers",
)

RULE = (
    "leaks: identification or the centred cosine lies above the floor (two one-sided tests over "
    f"clients, together at a level of {100 * ERROR:g} %, Holm); {OPEN_RULE}, or fewer than "
    f"{MIN_CLIENTS} clients with two classes. Margins: {MARGIN_SHARE:g} of either. A "
    "prototype that the attack gave up is not found, and scores as the worst floor"
)


@dataclasses.dataclass(frozen=True, eq=False)
class VectorScores:
    """Scores of each true prototype, (M,) each, in the order of the truth.

    Args:
        clients, labels, counts: whose prototype, of which class, of how many training samples.
        centred_cosine: of answer and truth, both less the mean of the client's true prototypes;
            NaN where the client has one class, whose centred prototype is zero.
        relative_error: ||p - p'|| / ||p'||, p' the truth.
        identified: 1 where the answer is nearest (Euclidean) to its own true prototype among the
            client's, shared between ties; NaN where the client has one class.
        chance: 1 / number of classes, what a blind guess identifies.

    NaN in all scores where there is no finite answer; `answered` tells.
    """

    clients: Tensor
    labels: Tensor
    counts: Tensor
    centred_cosine: Tensor
    relative_error: Tensor
    identified: Tensor
    chance: Tensor

    @property
    def answered(self) -> Tensor:
        """Which prototypes have a finite answer, (M,) bool."""
        return self.relative_error.isfinite()


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TruePrototypes:
    """The true prototypes of all clients' classes, and answers to them that need no attack.

    Shape: vectors (M, d); clients, labels, counts (training samples behind each) (M,);
    floors: "upload" and "public" to (M, d), those that there are.
    """

    vectors: Tensor
    clients: Tensor
    labels: Tensor
    counts: Tensor
    floors: Mapping[str, Tensor]

    def compare(self, vectors: Tensor, clients: Tensor, labels: Tensor) -> VectorScores:
        """Scores of answers (N, d) for clients and labels (N,), in the order of the truth.

        Raises:
            IncompatibleError: lengths or dimensions that differ, or two answers for one class.
        """
        answers, truth = self._placed(vectors, clients, labels), self.vectors.double()
        cosine, hit, chance = (answers.new_full((len(truth),), torch.nan) for _ in range(3))
        for client in self.clients.unique():
            rows = (self.clients == client).nonzero().squeeze(1)
            chance[rows] = 1 / len(rows)
            if len(rows) == 1:
                continue
            own, true = answers[rows], truth[rows]
            centre = true.mean(0)
            cosine[rows] = torch.cosine_similarity(own - centre, true - centre, dim=1)
            distance = (own[:, None] - true[None]).norm(dim=2)
            nearest = distance == distance.amin(1, keepdim=True)
            found = nearest.diagonal().double() / nearest.sum(1).clamp(min=1)
            hit[rows] = torch.where(distance.isfinite().all(1), found, torch.nan)
        error = (answers - truth).norm(dim=1) / truth.norm(dim=1)
        return VectorScores(self.clients, self.labels, self.counts, cosine, error, hit, chance)

    def _placed(self, vectors: Tensor, clients: Tensor, labels: Tensor) -> Tensor:
        """Answers in the order of the truth, (M, d) float64; NaN where there is none."""
        if vectors.shape[1:] != self.vectors.shape[1:]:
            raise IncompatibleError(
                f"Recovered vectors have {tuple(vectors.shape[1:])} values, true ones "
                f"{tuple(self.vectors.shape[1:])}: they are of different extractors."
            )
        true = (self.vectors, self.clients, self.labels, self.counts)
        for what, parts in (("true ", true), ("", (vectors, clients, labels))):
            if len({len(part) for part in parts}) > 1:
                count, *others = (len(part) for part in parts)
                raise IncompatibleError(
                    f"{count} {what}vectors with clients, labels (and counts) of lengths "
                    f"{others}; one of each is needed."
                )
        same = (self.clients[:, None] == clients) & (self.labels[:, None] == labels)
        if bool((same.sum(1) > 1).any()):
            raise IncompatibleError("Two answers were given for one client and class.")
        out = torch.full(self.vectors.shape, torch.nan, dtype=torch.float64)
        row, answer = same.nonzero(as_tuple=True)
        out[row] = vectors[answer].double()
        return out


def evaluate_prototypes(outcome: RecoveredPrototypes, truth: TruePrototypes) -> Card:
    """Compare recovered prototypes with the true ones of the same client and class.

    Prototypes that the attack gave up stay in every mean, as the worst floor and as not found,
    unless it gave all of them up. The floor of each measure is chosen by `cross_fit`. Measures of
    two or more classes leave out clients of one class.

    Returns:
        A card whose `rows` has one row per client and class: the measures of the answer and of
        every floor, and what the attack says about it.
    """
    found = truth.compare(outcome.vectors, outcome.clients, outcome.labels)
    answers = {**truth.floors, "mean": _mean_floor(outcome, truth)}
    floors = {
        name: truth.compare(vectors, truth.clients, truth.labels)
        for name, vectors in answers.items()
    }
    measures = [
        _measure(key, group, inside, found, floors)
        for group, inside in by_size(truth.counts).items()
        for key in MEASURES
    ]
    smallest = outcome.s_min[outcome.s_min.isfinite()]
    if len(smallest):
        value, n = float(smallest.median()), len(smallest)
        measures.append(dataclasses.replace(SMALLEST, value=value, n=n))
    said = outcome.vectors.isfinite().all(1)
    if bool(said.any()):
        held = torch.isin(
            _keys(outcome.clients, outcome.labels), _keys(truth.clients, truth.labels)
        )
        false = float((~held)[said].double().mean())
        measures.append(dataclasses.replace(FALSE, value=false, n=int(said.sum())))
    rows = _rows(found, floors, outcome)
    if "certified" in rows:
        certified = torch.tensor(rows["certified"].to_numpy(dtype=bool))
        right = found.relative_error <= CERTIFIED_WITHIN
        share = float(right[found.answered].double().mean()) if bool(found.answered.any()) else None
        precise = dataclasses.replace(PRECISE, floor=share)
        measures += certificate_measures(certified, right, found.clients, precise)
    return Card(
        measures=tuple(measures),
        verdict=_verdict(measures, found),
        rows=rows,
        n=int(found.answered.sum()),
        targets=len(truth.counts),
        diverged=int((~found.answered).sum()),
        compared_with="the true prototype of the same client and class",
        floors=FLOORS,
        notes=outcome.notes,
    )


def _keys(clients: Tensor, labels: Tensor) -> Tensor:
    """One number for each pair of client and class."""
    return clients * 1_000_000 + labels


def _mean_floor(outcome: RecoveredPrototypes, truth: TruePrototypes) -> Tensor:
    out = truth.floors.get("upload", truth.floors["public"]).to(truth.vectors).clone()
    for client in truth.clients.unique():
        found = outcome.vectors[(outcome.clients == client) & outcome.vectors.isfinite().all(1)]
        if len(found):
            out[truth.clients == client] = found.mean(0)
    return out


def _measure(
    key: str, group: str, inside: Tensor, found: VectorScores, floors: Mapping[str, VectorScores]
) -> Measure:
    """One measure over the prototypes `inside` (M,) that it says anything about."""
    of = MEASURES[key] if not group else dataclasses.replace(MEASURES[key], shown=TABLE)
    higher = of.higher_is_more_leakage
    mine: Tensor = getattr(found, key)
    others: dict[str, Tensor] = {name: getattr(scores, key) for name, scores in floors.items()}
    if bool(found.answered.any()):
        worst = worst_of(list(others.values()), higher_leaks=higher)
        # floors have no score either where a client has one class and the measure needs two
        worst = torch.where(worst.isfinite(), worst, torch.nan)
        lost = worst * 0 if key == "identified" else worst
        mine = torch.where(found.answered, mine, lost)
    if key == "identified":
        others["chance"] = found.chance
    usable = inside & mine.isfinite()
    owners = found.clients[usable]
    of = dataclasses.replace(
        of, group=group, targets=int(inside.sum()), clients=len(found.clients[inside].unique())
    )
    if not len(owners):
        return of
    floor = cross_fit(
        {name: value[usable] for name, value in others.items()}, owners, higher_leaks=higher
    )
    if floor.name is None:
        return of
    of = dataclasses.replace(of, floors_chosen=floor.counts())
    return over_floor(
        of, mine[usable].double(), floor.values, owners, floor_name=floor.name, group=group
    )


def _verdict(measures: list[Measure], found: VectorScores) -> Verdict:
    by_key = {m.key: m for m in measures if not m.group}
    hit, cosine = by_key["identified"], by_key["centred_cosine"]
    leaks = bool(holm(p_values(measures, ("identified", "centred_cosine"))))
    word = leak_verdict(leaks, (hit, cosine))
    because = "no client has two classes"
    if not bool(found.answered.any()):
        because = f"the attack tells none of {len(found.counts)} prototypes apart"
    if hit.value is not None and hit.floor is not None:
        because = (
            f"found among the client's prototypes {100 * hit.value:.1f} % of the time "
            f"({100 * hit.floor:.1f} % with {hit.floor_name}), centred cosine "
            f"{cosine.number(cosine.value)} ({cosine.number(cosine.floor)} with "
            f"{cosine.floor_name}), n = {hit.n}"
        )
    several = len(found.clients[found.chance < 1].unique())
    if hit.value is not None and several < MIN_CLIENTS:
        word = INCONCLUSIVE
        because += f", {plural(several, 'client')} of at least {MIN_CLIENTS} needed"
    elif hit.value is not None and word != LEAKS:
        because += f"; {still((hit, cosine))}"
    alone = int((found.chance == 1).sum())
    if alone:
        because += f"; {alone} more belong to clients of one class, who upload them bare"
    return Verdict(word, because, RULE)


def _rows(
    found: VectorScores, floors: Mapping[str, VectorScores], outcome: RecoveredPrototypes
) -> pd.DataFrame:
    data = {
        "client": found.clients.numpy(),
        "label": found.labels.numpy(),
        "count": found.counts.numpy(),
        **{key: getattr(found, key).numpy() for key in MEASURES},
    }
    for name, scores in floors.items():
        data |= {f"{key}_{name}": getattr(scores, key).numpy() for key in MEASURES}
    told = pd.DataFrame(
        {
            "client": outcome.clients.numpy(),
            "label": outcome.labels.numpy(),
            "rounds_used": outcome.rounds_used.numpy(),
            "s_min": outcome.s_min.numpy(),
            "expected_error": outcome.expected_error.numpy(),
        }
    )
    if len(outcome.certified):
        told["certified"] = outcome.certified.numpy()
    rows = pd.DataFrame(data).merge(told, how="left", on=["client", "label"])
    if "certified" in rows:
        rows["certified"] = rows["certified"].eq(True)
    return rows
