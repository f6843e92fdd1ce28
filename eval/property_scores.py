"""Score property inference: do scores of clients with a property lie above those without?

Clients are compared within a property only. Pure functions of tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.units import plural

from .intervals import DRAWS, Estimate, bootstrap_estimate, ends
from .measures import COMPARISON, TABLE, Card, Measure, Verdict, over_floor
from .paired_comparisons import fill_missing, multiplicities
from .verdict import (
    ERROR,
    MARGIN_SHARE,
    MIN_CLIENTS,
    OPEN_RULE,
    holm,
    verdict_of_clients,
)

AUC = Measure(
    key="property_auc",
    title="AUC",
    definition="share of pairs (a client with the property, one without it) that the attack puts "
    "in the right order",
    bounds=(0.0, 1.0),
    margin=MARGIN_SHARE,
    shown=COMPARISON,
)
RIGHT = Measure(
    key="property_right",
    title="answers right",
    definition="share of clients and properties of which the attack says rightly whether the "
    "client has it",
    percent=True,
    bounds=(0.0, 1.0),
    against="guess",
    shown=TABLE,
)
EXCHANGES = 999
NOTHING = "nothing known"
COMMON = "the commoner answer to each property"


def evaluate_properties(
    scores: Tensor,
    shares: Tensor,
    above: Tensor,
    clients: Tensor,
    *,
    names: Sequence[str],
    kinds: Sequence[str],
    told: Mapping[str, Tensor],
    notes: tuple[str, ...] = (),
    draws: int = DRAWS,
    seed: int = 0,
) -> Card:
    """Compare what an attack says about properties of clients' images with the images.

    Intervals resample clients, with all their properties, and are corrected for few clients. The
    floor of each kind of property is the rule out of `told` and of knowing nothing that has the
    highest AUC.

    Args:
        scores: (K, P) higher means that the client has it; above 0.5 the attack says so. NaN
            counts as the lowest, and as the answer no.
        shares: (K, P) of each client's images that count.
        above: (P,) the share above which a client has the property.
        clients: (K,) int64.
        names, kinds: of the P properties, in words; those of a kind are scored together.
        told: scores (K, P) by rules that see no more than what uploads name, by name.

    Returns:
        A card whose `rows` has one row per client and property.

    Raises:
        IncompatibleError: shapes differ, or no property is had by some clients and not by others.
    """
    wanted = (len(clients), len(names))
    given = {"scores": scores, "shares": shares, **told}
    wrong = {name: tuple(values.shape) for name, values in given.items() if values.shape != wanted}
    if wrong or len(above) != len(names) or len(kinds) != len(names):
        raise IncompatibleError(f"Properties need {wanted} scores, one a client and name: {wrong}.")
    has = shares > above
    split = has.any(0) & ~has.all(0)
    if not bool(split.any()):
        raise IncompatibleError(
            f"None of {plural(len(names), 'property')} is had by some of "
            f"{plural(len(clients), 'client')} and not by others.",
            next_step="Use more clients (--clients), or another partition.",
        )
    rules = {NOTHING: torch.zeros(wanted, dtype=torch.float64), **told}
    times = multiplicities(len(clients), draws, stream(seed, "property bootstrap"))
    of_kind = {kind: torch.tensor([k == kind for k in kinds]) for kind in dict.fromkeys(kinds)}
    games = {"": split, **{kind: split & here for kind, here in of_kind.items()}}
    whole, *parts = [
        _area(kind, fill_missing(scores), has, rules, columns, times, seed)
        for kind, columns in games.items()
        if bool(columns.any())
    ]
    says = (scores > 0.5) == has
    commoner = torch.maximum(has.double().mean(0), (~has).double().mean(0))
    guess = commoner.expand(wanted)
    owner = clients[:, None].expand(wanted)
    right = over_floor(
        RIGHT, says.double().flatten(), guess.flatten(), owner.flatten(), floor_name=COMMON
    )
    measures = tuple(
        dataclasses.replace(m, clients=len(clients), targets=has.numel())
        for m in (whole, *parts, right)
    )
    rows = {
        "client": owner.flatten().tolist(),
        "property": [*names] * len(clients),
        "has": has.flatten().tolist(),
        "share": shares.flatten().tolist(),
        "score": scores.flatten().tolist(),
        **{name: values.flatten().tolist() for name, values in told.items()},
    }
    return Card(
        measures=measures,
        verdict=_verdict(measures[1:-1], len(clients)),
        rows=pd.DataFrame(rows),
        n=int(split.sum()) * len(clients),
        targets=has.numel(),
        diverged=int(scores.isnan().sum()),
        compared_with="the training images of each client",
        floors={
            **dict.fromkeys(told, "what uploads name beside their values"),
            COMMON: "for each property what most clients have or lack",
        },
        notes=notes,
    )


def _area(
    kind: str,
    scores: Tensor,
    has: Tensor,
    rules: Mapping[str, Tensor],
    columns: Tensor,
    times: Tensor,
    seed: int,
) -> Measure:
    """The AUC over the pairs of some properties, beside the best rule.

    Its p-value is the larger of two: that it is above the rule, by the resamples, and that it is
    above chance, by exchanging clients; the first says nothing where all pairs are in order.
    """
    pairs = _pairs(has[:, columns])
    total = pairs.sum(2)
    every = {"": scores, **{name: fill_missing(values) for name, values in rules.items()}}
    ahead = {name: _ahead(values[:, columns]) for name, values in every.items()}
    won = {name: (one * pairs).sum(2) for name, one in ahead.items()}
    area = {name: float(one.sum() / total.sum()) for name, one in won.items()}
    best = max(rules, key=lambda name: area[name])
    over_all = torch.einsum("bi,ij,bj->b", times, total, times)
    usable, weights = over_all > 0, total.sum(0) + total.sum(1)

    def estimate(of: Tensor, value: float) -> Estimate:
        drawn = torch.einsum("bi,ij,bj->b", times, of, times) / over_all
        return bootstrap_estimate(drawn[usable, None], torch.tensor([value]), weights)

    gap = estimate(won[""] - won[best], area[""] - area[best])
    p = max(float(gap.p_above()), _by_chance(ahead[""], has[:, columns], area[""], seed))
    known = best != NOTHING
    interval = ends(estimate(won[""], area[""]), (0.0, 1.0))
    over = ends(gap, (-1.0, 1.0))
    if not known and interval is not None:
        over = interval[0] - area[best], interval[1] - area[best]
    of = AUC
    if kind:
        of = dataclasses.replace(AUC, key=f"{AUC.key}_{kind}", title=f"AUC, {kind}", shown=TABLE)
    return dataclasses.replace(
        of,
        value=area[""],
        interval=interval,
        floor=area[best],
        floor_interval=ends(estimate(won[best], area[best]), (0.0, 1.0)) if known else None,
        floor_name=best,
        over=area[""] - area[best],
        over_interval=over,
        p=p,
        n=int(columns.sum()) * len(has),
    )


def _pairs(has: Tensor) -> Tensor:
    """Clients with a property and clients without it (K, K, P)."""
    return (has[:, None] & ~has[None]).double()


def _ahead(scores: Tensor) -> Tensor:
    """Which client's score is the higher, (K, K, P); 1/2 where they are equal."""
    high, low = scores[:, None], scores[None]
    return (high > low).double() + (high == low).double() / 2


def _by_chance(ahead: Tensor, has: Tensor, value: float, seed: int) -> float:
    """How often clients in another order give such an AUC: an exact test by exchange."""
    rng, reached = stream(seed, "property exchange"), 0
    for _ in range(EXCHANGES):
        pairs = _pairs(has[torch.randperm(len(has), generator=rng)])
        reached += float((ahead * pairs).sum() / pairs.sum()) >= value - 1e-12
    return (1 + reached) / (1 + EXCHANGES)


def _verdict(parts: Sequence[Measure], clients: int) -> Verdict:
    tests = [m.p for m in parts if m.p is not None]
    said = [
        f"{m.title} {m.value_text()} ({m.floor_name} {m.number(m.floor)}, n = {m.n})" for m in parts
    ]
    rule = (
        "leaks: the AUC of a kind of property lies above chance, and above the best rule that sees "
        f"no more than labels (one-sided, together at a level of {100 * ERROR:g} %, Holm); "
        f"{OPEN_RULE}, or fewer than {MIN_CLIENTS} clients. Margin: {MARGIN_SHARE:g} of each AUC"
    )
    return verdict_of_clients(bool(holm(tests)), parts, said, rule, clients=clients)
