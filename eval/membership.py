"""Score membership inference: how well scores separate members from others of the same class.

Scores are compared within a client and class only, as support leakage (which classes a client
holds at all) is another question. Pure functions of tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError

from .intervals import DRAWS, bootstrap_estimate, finite
from .measures import COMPARISON, RECORD, TABLE, Card, Interval, Measure, Verdict, by_size
from .paired_comparisons import Comparisons, bootstrap, count_pairs, fill_missing, pairs_won
from .roc import LOW_RATES, tpr_at
from .verdict import LEAKS, MARGIN_SHARE, MIN_CLIENTS, OPEN_RULE, leak_verdict, still

BASELINE, FLOOR = "baseline", "floor"
"""What an AUC stands beside: a model without the upload, and the image alone."""


@dataclass(frozen=True)
class ModelRule:
    """What a model tells without the upload, and what the verdict makes of it.

    Args:
        name: in tables.
        what: in a sentence.
        above: what the attack must be above to be called a leak, `BASELINE` or `FLOOR`.
        rule: of the verdict.
    """

    name: str
    what: str
    above: str
    rule: str


RULE = "leaks: the 95 % interval of the AUC lies above 0.5, and that of the AUC over {} above 0"
OVER_IMAGE = RULE.format("the rule that sees the image alone")

GRANTED = ModelRule(
    "the model alone",
    "the log-probability of the label under the client's model, which is granted",
    BASELINE,
    RULE.format("the model alone, which is granted and trained on the members,"),
)
"""Beside representations and prototypes, which are attacked with the client's model."""

WITHHELD = ModelRule(
    "the client's model",
    "the log-probability of the label under the client's model, which this attacker does not hold",
    FLOOR,
    f"{OVER_IMAGE}. The attacker holds no model of the client; what that would tell without the "
    "upload is its own line",
)
"""Beside representations and prototypes that are attacked without the client's model."""

RECEIVED = ModelRule(
    "the model before the upload",
    "minus the loss under the model that the server held before the upload",
    FLOOR,
    f"{OVER_IMAGE}. What the upload adds to the model before it is its own line",
)
"""Beside models and gradients: what is uploaded is the model itself."""

HALF_GRANTED = ModelRule(
    "what is granted, with the broadcast before the upload",
    "minus the loss under the parts of the client's model that are granted, and the broadcast for "
    "the rest",
    BASELINE,
    GRANTED.rule.replace("the model alone", "what is granted, with the broadcast"),
)
"""Beside heads and matrix blocks, which compute a loss only with parts that are granted."""

OPEN = f"{OPEN_RULE}, or fewer than {MIN_CLIENTS} clients. Margin: {MARGIN_SHARE:g} of the AUC"
"""Of the verdict where nothing leaks."""

ALONE = "image alone"
"""The rule that sees no model."""

AUC = Measure(
    key="auc",
    title="AUC",
    definition="share of pairs (training image, other image) of one client and class that the "
    "attack puts in the right order",
    bounds=(0.0, 1.0),
    margin=MARGIN_SHARE,
    shown=COMPARISON,
)
TPR = Measure(
    key="tpr",
    title="TPR",
    definition="share of training images recognised at that rate of false alarms",
    bounds=(0.0, 1.0),
    floor_name="chance",
    against="chance",
)


SECOND = {
    BASELINE: ("auc_over_model", "AUC over {}"),
    FLOOR: ("auc_over_image", "AUC over the {}"),
}
"""Key and title of the AUC beside what the verdict does not hold against it."""


def evaluate_membership(
    scores: Tensor,
    members: Tensor,
    clients: Tensor,
    labels: Tensor,
    *,
    baseline: Tensor | None = None,
    floor: Tensor | None = None,
    beside: ModelRule = RECEIVED,
    class_sizes: Tensor | None = None,
    notes: tuple[str, ...] = (),
    draws: int = DRAWS,
    seed: int = 0,
) -> Card:
    """Score an attack, with its uncertainty, beside what tells membership without the upload.

    The interval of the AUC resamples clients, and candidates within each client and class, and
    is corrected for few clients (`intervals.resampled`). Rates at a threshold pool scores that
    are `standardise_scores`, for which membership is not used.

    Args:
        scores: (M,) higher means member; NaN counts as the lowest.
        members, clients, labels: (M,) bool, int64 and int64.
        baseline: (M,) scores of an attack that sees a model but not the upload, such as the
            log-probability of the label.
        floor: (M,) scores of a rule that sees the image and its label alone.
        beside: what the baseline is, and which of the two the verdict holds against the attack:
            that is the floor of measure ``auc``; the other is that of ``auc_over_model`` or
            ``auc_over_image``.
        class_sizes: (M,) samples of the candidate's class at its client, for results by group.

    Returns:
        A card whose `rows` has one row per candidate.

    Raises:
        IncompatibleError: lengths differ, or no client and class has both members and others.
    """
    given = {"client": clients, "label": labels}
    given |= {"class_size": class_sizes} if class_sizes is not None else {}
    given |= {"member": members, "score": scores}
    columns = {BASELINE: baseline, FLOOR: floor}
    references = {name: values for name, values in columns.items() if values is not None}
    given |= references
    lengths = {name: len(value) for name, value in given.items()}
    if len(set(lengths.values())) > 1:
        raise IncompatibleError(f"Membership needs one entry per candidate each; got {lengths}.")
    rows = pd.DataFrame({name: values.numpy() for name, values in given.items()})
    members = members.bool()
    table = torch.stack([fill_missing(column) for column in (scores, *references.values())], dim=1)
    called = {BASELINE: beside.name, FLOOR: ALONE}
    named = [(name, called[name]) for name in references]
    pairs = count_pairs(table, members, clients, labels)
    if not len(pairs.owner):
        raise IncompatibleError(
            "Membership needs candidates of both kinds in some client and class; "
            f"got {int(members.sum())} members and {int((~members).sum())} others.",
            next_step="Add held-out images of the classes that the clients hold.",
        )
    whole = _areas(table, named, pairs, draws, seed)
    above, other = (BASELINE, FLOOR) if beside.above == BASELINE else (FLOOR, BASELINE)
    measures = [whole.get(above, whole[""])]
    for group, here in {} if class_sizes is None else by_size(class_sizes).items():
        own = count_pairs(table[here], members[here], clients[here], labels[here])
        if group and len(own.owner):
            inside = _areas(table[here], named, own, draws, seed)
            measure = inside.get(above, inside[""])
            measures.append(dataclasses.replace(measure, group=group, shown=TABLE))
    if other in whole:
        key, title = SECOND[other]
        title = title.format(called[other])
        measures.append(dataclasses.replace(whole[other], key=key, title=title, shown=TABLE))
    standard = standardise_scores(table[:, 0], clients, labels)
    measures += [*_rates(standard, members, pairs.usable), _across(table, members, clients)]
    return Card(
        measures=tuple(measures),
        verdict=_verdict(whole, beside),
        rows=rows,
        n=pairs.compared,
        targets=len(scores),
        diverged=int(scores.isnan().sum()),
        compared_with="members against other images of the same client's classes",
        floors={
            beside.name: beside.what,
            ALONE: "minus the distance to the mean public image of the class",
        },
        notes=notes,
    )


def _verdict(whole: Mapping[str, Measure], beside: ModelRule) -> Verdict:
    auc = whole[""]
    against = whole.get(beside.above)
    leaks = (
        auc.interval is not None
        and against is not None
        and against.over_interval is not None
        and auc.interval[0] > 0.5
        and against.over_interval[0] > 0
    )
    told = [f"AUC {auc.value_text()}"]
    for beaten in (whole[name] for name in (FLOOR, BASELINE) if name in whole):
        floor = dataclasses.replace(beaten, value=beaten.floor, interval=beaten.floor_interval)
        told.append(f"{beaten.floor_name} {floor.value_text()}")
    told.append(f"n = {auc.n} candidates of {auc.clients} clients")
    # both must be beaten, so a bound over either rules the leak out
    over_chance = None if auc.interval is None else (auc.interval[0] - 0.5, auc.interval[1] - 0.5)
    chance = dataclasses.replace(auc, over_interval=over_chance)
    either = [m for m in (against, chance) if m is not None]
    asked = next((m for m in either if m.bounded), either[0])
    word = leak_verdict(leaks, (asked,), clients=auc.clients)
    if word != LEAKS:
        told.append(f"{still((asked,))} over {asked.floor_name or 'chance'}")
    return Verdict(word, ", ".join(told), f"{beside.rule}; {OPEN}")


def auc(scores: Tensor, members: Tensor) -> float:
    """Share of pairs (member, other) with the member higher; ties count half, NaN is lowest.

    NaN where either kind is absent.
    """
    scores = fill_missing(scores)
    won, total = pairs_won(scores[members.bool(), None], scores[~members.bool(), None])
    return float(won.sum() / total) if total else float("nan")


def comparable(rows: pd.DataFrame) -> dict[str, tuple[Tensor, Tensor]]:
    """Scores of members and of others by name, comparable across clients and classes.

    Args:
        rows: of a card that `evaluate_membership` made.
    """
    clients, labels, members = (
        torch.tensor(rows[name].to_numpy()) for name in ("client", "label", "member")
    )
    named = {"score": "this attack", BASELINE: "the model without the upload", FLOOR: ALONE}
    out = {}
    for column, name in named.items():
        if column in rows:
            scores = fill_missing(torch.tensor(rows[column].to_numpy()))
            scores = standardise_scores(scores, clients, labels)
            out[name] = scores[members.bool()], scores[~members.bool()]
    return out


def _areas(
    table: Tensor, named: Sequence[tuple[str, str]], pairs: Comparisons, draws: int, seed: int
) -> dict[str, Measure]:
    """The AUC of the first column alone (key "") and beside each other column."""
    values = pairs.won.sum(0) / pairs.total.sum()
    drawn = bootstrap(table, pairs, draws, seed)
    owners, position = pairs.owner.unique(return_inverse=True)
    weights = torch.zeros(len(owners)).double()
    weights.index_add_(0, position, pairs.total)
    ends = _intervals(bootstrap_estimate(drawn, values, weights).interval(bounds=(0, 1)))
    gap = bootstrap_estimate(drawn[:, :1] - drawn, values[:1] - values, weights)
    low, high = (end.clamp(-1, 1) for end in gap.interval())
    gaps = _intervals((low, high))
    own = dataclasses.replace(
        AUC,
        value=float(values[0]),
        interval=ends[0],
        n=pairs.compared,
        targets=len(table),
        clients=len(owners),
    )
    beside = {
        key: dataclasses.replace(
            own,
            floor=float(values[place]),
            floor_interval=ends[place],
            floor_name=name,
            over=float(values[0] - values[place]),
            over_interval=gaps[place],
        )
        for place, (key, name) in enumerate(named, start=1)
    }
    return {"": own, **beside}


def _intervals(ends: tuple[Tensor, Tensor]) -> list[Interval]:
    low, high = (end.tolist() for end in ends)
    return list(zip(low, high, strict=True))


def _across(table: Tensor, members: Tensor, clients: Tensor) -> Measure:
    """AUC within clients over all classes: support leakage is part of it."""
    pairs = count_pairs(table[:, :1], members, clients, torch.zeros_like(clients))
    value = float(pairs.won.sum() / pairs.total.sum()) if len(pairs.owner) else float("nan")
    return Measure(
        key="auc_across_classes",
        title="AUC within clients, over all classes",
        definition="with what the classes held tell",
        shown=RECORD,
        value=finite(value),
        n=pairs.compared,
    )


def standardise_scores(scores: Tensor, clients: Tensor, labels: Tensor) -> Tensor:
    """Take the median and the interquartile range of each client and class out of scores."""
    finite = scores.isfinite()
    keys = torch.stack([clients, labels], dim=1)
    group = torch.unique(keys, dim=0, return_inverse=True)[1]
    out = scores.clone()
    for number in group.unique().tolist():
        here = (group == number) & finite
        if bool(here.any()):
            values = scores[here]
            low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75]).double())
            out[here] = (values - middle) / (high - low).clamp(min=1e-12)
    return out


def _rates(scores: Tensor, members: Tensor, usable: Tensor) -> list[Measure]:
    """TPR at low FPR and balanced accuracy of pooled scores."""
    inside, outside = scores[usable & members], scores[usable & ~members]
    count = len(inside) + len(outside)
    out = []
    for rate in LOW_RATES:
        found = tpr_at(inside, outside, rate)
        of = dataclasses.replace(
            TPR, key=f"tpr_at_fpr_{rate:g}", title=f"TPR at FPR {rate:.1%}", floor=rate, n=count
        )
        if found is None:
            why = (
                f"{len(outside)} candidates that are no members; a rate of {rate:g} needs at "
                f"least {round(1 / rate)}"
            )
            out.append(dataclasses.replace(of, note=why))
            continue
        value, between = found.tpr, found.interval
        out.append(dataclasses.replace(of, value=value, interval=between, over=value - rate))
    right = ((inside > 0).double().mean() + (outside <= 0).double().mean()) / 2
    levels = scores[usable].unique()
    hit = 1 - torch.searchsorted(inside.sort().values, levels, right=True) / len(inside)
    false = 1 - torch.searchsorted(outside.sort().values, levels, right=True) / len(outside)
    best = max(0.5, float(((hit + 1 - false) / 2).max()))
    accuracies = ((ACCURACY, float(right)), (BEST_ACCURACY, best))
    return out + [dataclasses.replace(of, value=value, n=count) for of, value in accuracies]


ACCURACY = Measure(
    key="balanced_accuracy",
    title="balanced accuracy",
    definition="of answering member above the median of a client and class, the best guess where "
    "half of the candidates are members",
    shown=RECORD,
)
BEST_ACCURACY = Measure(
    key="balanced_accuracy_best",
    title="balanced accuracy, best threshold",
    definition="of the best threshold in hindsight, which bounds it from above",
    shown=RECORD,
)
