"""Score retrieval: which of many candidate images went into a target, and what is on it.

Each target has a line-up: an image that went into it and images that did not, of its class as far
as there are any. A stand-in takes the original's place where presence is asked. Pure functions of
tensors.
"""

from __future__ import annotations

import dataclasses

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.units import plural

from .floors import cross_fit
from .intervals import at_least
from .measures import COMPARISON, TABLE, Card, Measure, Verdict, by_size, over_floor, p_values
from .paired_comparisons import fill_missing
from .verdict import ERROR, MARGIN_SHARE, MIN_CLIENTS, OPEN_RULE, holm, verdict_of_clients

GUESS = "a guess that knows the class"
ABSENT = "the same line-ups without their originals"
COMMONEST = "the commonest class of all targets"
OWN_COMMONEST = "the commonest class of the client's images"

FIRST = Measure(
    key="retrieved1",
    title="retrieved first",
    definition="share of line-ups whose original has the highest score; equal scores share it",
    percent=True,
    bounds=(0.0, 1.0),
    margin=MARGIN_SHARE,
    against="guess",
    shown=COMPARISON,
)
FIVE = dataclasses.replace(
    FIRST,
    key="retrieved5",
    title="retrieved among five",
    definition="share of line-ups whose original is among the five highest scores",
    margin=None,
    shown=TABLE,
)
PRESENT = Measure(
    key="present",
    title="presence",
    definition="share of pairs of targets in which the best score of a line-up with its original "
    "is higher than that of another's in which a stand-in takes the original's place",
    bounds=(0.0, 1.0),
    margin=MARGIN_SHARE,
    against="line-ups without originals",
    shown=TABLE,
)
CLASS = Measure(
    key="class_found",
    title="class found",
    definition="share of targets of one class that have it in common with the candidate of the "
    "highest score among public images, none of which went into any target",
    percent=True,
    bounds=(0.0, 1.0),
    against="guess",
    shown=TABLE,
)
RULE = (
    f"leaks: more originals are retrieved first than by {GUESS}, or presence is in order more "
    f"often than in {ABSENT} (one-sided tests over clients, together at {100 * ERROR:g} %, Holm), "
    "or so many of these originals are first as such a guess finds at most that often; "
    f"{OPEN_RULE}, or fewer than {MIN_CLIENTS} clients. Margin: +{100 * MARGIN_SHARE:g} "
    "points of either. What class a target has is beside it, as many uploads name it"
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LineUps:
    """What the evaluator knows of M candidates and N targets.

    Shape:
        index (N, G) int64: candidates in a target's line-up; column 0 the original, -1 pads.
        stand_in (N,): a candidate of the original's class outside of the line-up; -1: there is
            none.
        labels (M,): classes. pool (M,) bool: public images that tell the class.
        target_labels (N,): -1 where a target mixes classes. clients (N,).
        sizes (N,): images behind a target. commonest (N,): the class of which the target's client
            has most images.
    """

    index: Tensor
    stand_in: Tensor
    labels: Tensor
    pool: Tensor
    target_labels: Tensor
    clients: Tensor
    sizes: Tensor
    commonest: Tensor


def evaluate_retrieval(scores: Tensor, truth: LineUps, notes: tuple[str, ...] = ()) -> Card:
    """Score an attack on line-ups, beside a guess that knows the class.

    A score that is not a number counts as the lowest of all.

    Args:
        scores: (N, M), higher means that the candidate went into the target.

    Returns:
        A card whose `rows` has one row per target.

    Raises:
        IncompatibleError: shapes differ, or a line-up has fewer than two images.
    """
    count, asked = len(truth.index), len(truth.labels)
    if scores.shape != (count, asked):
        raise IncompatibleError(
            f"Retrieval needs ({count}, {asked}) scores, one a target and candidate; got "
            f"{tuple(scores.shape)}."
        )
    held = (truth.index >= 0).sum(1)
    if not count or int(held.min()) < 2:
        raise IncompatibleError(
            "A line-up needs two images at least: an original and another.",
            next_step="Use more images, or raise eval.gallery.",
        )
    filled = fill_missing(scores.double())
    chosen = filled.gather(1, truth.index.clamp(min=0))
    rivals = truth.index >= 0
    rivals[:, 0] = False
    ahead = ((chosen > chosen[:, :1]) & rivals).sum(1).double()
    tied = ((chosen == chosen[:, :1]) & rivals).sum(1).double() + 1
    alike = truth.labels[truth.index.clamp(min=0)] == truth.labels[truth.index[:, :1]]
    guess = 1 / (1 + (alike & rivals).sum(1).double())
    present, absent = _presence(filled, truth)
    values = {
        FIRST.key: ((1 - ahead) / tied).clamp(0, 1),
        FIVE.key: ((5 - ahead) / tied).clamp(0, 1),
        PRESENT.key: present,
        CLASS.key: _class_found(filled, truth),
    }
    floors = {
        FIRST.key: guess,
        FIVE.key: (5 * guess).clamp(max=1),
        PRESENT.key: absent,
    }
    measures = [
        _measure(of, group, inside, values[of.key], floors.get(of.key), truth)
        for group, inside in by_size(truth.sizes).items()
        for of in (FIRST, FIVE, PRESENT, CLASS)
    ]
    said = scores.isfinite().any(1)
    rows = {
        "client": truth.clients.tolist(), "label": truth.target_labels.tolist(),
        "images": truth.sizes.tolist(), "line_up": held.tolist(),
        **{key: own.tolist() for key, own in values.items()}, "guess": guess.tolist(),
    }  # fmt: skip
    return Card(
        measures=tuple(measures),
        verdict=_verdict(measures, values[FIRST.key], guess, int(held.max()), truth),
        rows=pd.DataFrame(rows),
        n=int(said.sum()),
        targets=count,
        diverged=int((~said).sum()),
        compared_with="an image that went into the target, among others of its class",
        floors={
            GUESS: "images of the original's class first, in random order",
            ABSENT: "a stand-in of the class is in the original's place; 0.5 over all targets",
            COMMONEST: "answers that class for every target",
            OWN_COMMONEST: "answers for each target the class of which its client has most images",
        },
        notes=notes,
    )


def _presence(scores: Tensor, truth: LineUps) -> tuple[Tensor, Tensor]:
    """For each target the share of others' line-ups with a stand-in whose best lies lower, (N,).

    NaN where the target, or all others, have no stand-in. Beside it, what the target's own line-up
    reaches with its stand-in: scores grow with the images behind a target, so that some targets
    stand higher than others whoever is in their line-up.
    """
    has = truth.stand_in >= 0
    strangers = scores.gather(1, truth.index[:, 1:].clamp(min=0))
    strangers = strangers.masked_fill(truth.index[:, 1:] < 0, -torch.inf).amax(1)
    original = scores.gather(1, truth.index[:, :1]).squeeze(1)
    other = scores.gather(1, truth.stand_in[:, None].clamp(min=0)).squeeze(1)
    here, absent = torch.maximum(strangers, original), torch.maximum(strangers, other)
    usable = has[:, None] & has & ~torch.eye(len(has), dtype=torch.bool)
    count = usable.sum(1).double()

    def placed(best: Tensor) -> Tensor:
        won = (best[:, None] > absent).double() + (best[:, None] == absent).double() / 2
        return (won * usable).sum(1) / count.where(count > 0, torch.nan)

    return placed(here), placed(absent)


def _class_found(scores: Tensor, truth: LineUps) -> Tensor:
    """Whether the best of the pool has the target's class, (N,); NaN where it mixes classes."""
    pool = truth.pool.nonzero().squeeze(1)
    if not len(pool):
        return torch.full((len(scores),), torch.nan, dtype=torch.float64)
    own = scores[:, pool]
    best = own == own.amax(1, keepdim=True)
    right = best & (truth.labels[pool] == truth.target_labels[:, None])
    share = right.sum(1).double() / best.sum(1)
    return share.masked_fill(truth.target_labels < 0, torch.nan)


def _measure(
    of: Measure, group: str, inside: Tensor, values: Tensor, floor: Tensor | None, truth: LineUps
) -> Measure:
    if group:
        of = dataclasses.replace(of, shown=TABLE)
    owners = truth.clients[inside]
    of = dataclasses.replace(
        of, group=group, targets=int(inside.sum()), clients=len(owners.unique())
    )
    name = ABSENT if of.key == PRESENT.key else GUESS
    if floor is not None:
        made = floor[inside]
    else:
        inside = inside & values.isfinite()
        if not bool(inside.any()):
            return dataclasses.replace(of, note="targets mix classes")
        labels, owners = truth.target_labels[inside], truth.clients[inside]
        often = torch.bincount(truth.target_labels[truth.target_labels >= 0]).argmax()
        rules = {
            COMMONEST: (labels == often).double(),
            OWN_COMMONEST: (labels == truth.commonest[inside]).double(),
        }
        best = cross_fit(rules, owners, higher_leaks=True)
        made, name = best.values, best.name or COMMONEST
        of = dataclasses.replace(of, floors_chosen=best.counts())
    return over_floor(of, values[inside], made, owners, floor_name=name, group=group)


def _verdict(
    measures: list[Measure], right: Tensor, guess: Tensor, among: int, truth: LineUps
) -> Verdict:
    whole = {m.key: m for m in measures if not m.group}
    first, present, named = (whole[of.key] for of in (FIRST, PRESENT, CLASS))
    clients = len(truth.clients.unique())
    said = [
        f"{first.value_text()} of the originals first among {among} (guess "
        f"{first.number(first.floor)} %)",
        f"presence in {present.number(present.value)} of pairs "
        f"({present.number(present.floor)} without them)",
    ]
    if named.value is not None and named.floor is not None:
        said.append(
            f"class found of {named.value_text()} ({100 * named.floor:.1f} % by {named.floor_name})"
        )
    said.append(f"n = {plural(first.n, 'target')} of {plural(clients, 'client')}")
    alike = holm(p_values(measures, (FIRST.key, PRESENT.key)))
    leaks = bool(alike) or at_least(float(right.sum()), guess) <= ERROR
    asked = [m for m in (first, present) if m.value is not None]
    return verdict_of_clients(leaks, asked, said, RULE, clients=clients, comma=", ")
