"""Score membership inference: how well scores separate members from others of the same class.

Scores are compared within a client and class only, as support leakage (which classes a client
holds at all) is another question. Pure functions of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream

from .intervals import DRAWS, resampled

Summary = dict[str, Any]
FALSE_POSITIVE_RATES = (0.01, 0.001)
GROUPS = (("1", 1, 1), ("2-30", 2, 30), (">30", 31, None))
"""Candidates by number of samples of their class at the client: name, fewest, most."""


@dataclass(frozen=True, eq=False)
class MembershipReport:
    """The outcome of `evaluate_membership`.

    Attributes:
        rows: one row per client: client, members, others, auc, auc_baseline, auc_floor (NaN
            without one).
        summary: everything in words and numbers, ready for JSON; None where there is no number.
    """

    rows: pd.DataFrame
    summary: Summary


def evaluate_membership(
    scores: Tensor,
    members: Tensor,
    clients: Tensor,
    labels: Tensor,
    *,
    baseline: Tensor | None = None,
    floor: Tensor | None = None,
    class_sizes: Tensor | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> MembershipReport:
    """Score an attack, with its uncertainty, beside what tells membership without the upload.

    The AUC is the share of pairs (member, other) of the same client and class that are in the
    right order. Its interval resamples clients, and candidates within each client and class, and
    is corrected for few clients (`intervals.resampled`). Rates at a threshold pool the scores
    after each client's and class's median and spread are taken out, for which membership is not
    used.

    Args:
        scores: (M,) higher means member; NaN counts as the lowest.
        members: (M,) bool.
        clients, labels: (M,) int64.
        baseline: (M,) scores of an attack that sees a model but not the upload, such as the
            log-probability of the label.
        floor: (M,) scores of a rule that sees the image and its label alone.
        class_sizes: (M,) samples of the candidate's class at its client, for results by group.
        draws, seed: of the bootstrap.

    Raises:
        IncompatibleError: lengths differ, or no client and class has both members and others.
    """
    given = {"scores": scores, "members": members, "clients": clients, "labels": labels}
    beside = {"baseline": baseline, "floor": floor}
    columns = {name: value for name, value in beside.items() if value is not None}
    given |= columns
    given |= {"class_sizes": class_sizes} if class_sizes is not None else {}
    lengths = {name: len(value) for name, value in given.items()}
    if len(set(lengths.values())) > 1:
        raise IncompatibleError(f"Membership needs one entry per candidate each; got {lengths}.")
    members = members.bool()
    names = tuple(columns)
    table = torch.stack([_filled(column) for column in (scores, *columns.values())], dim=1)
    pairs = _count_pairs(table, members, clients, labels)
    if not len(pairs.owner):
        raise IncompatibleError(
            "Membership needs candidates of both kinds in some client and class; "
            f"got {int(members.sum())} members and {int((~members).sum())} others.",
            next_step="Add held-out images of the classes that the clients hold.",
        )
    summary: Summary = {
        "candidates": len(scores),
        "members": int(members.sum()),
        "compared": pairs.compared,
        "without_score": int(scores.isnan().sum()),
        "clients": len(pairs.owner.unique()),
        **_areas(table, names, members, clients, labels, pairs, draws, seed),
        **_rates(_standardised(table[:, 0], clients, labels), members, pairs.usable),
    }
    if class_sizes is not None:
        summary["by_class_size"] = {
            name: _group(
                table, names, members, clients, labels, class_sizes, low, high, draws, seed
            )
            for name, low, high in GROUPS
        }
    return MembershipReport(_per_client(pairs, names, members, clients), summary)


def auc(scores: Tensor, members: Tensor) -> float:
    """Share of pairs (member, other) with the member higher; ties count half, NaN is lowest.

    NaN where either kind is absent.
    """
    scores = _filled(scores)
    won, total = _won(scores[members.bool(), None], scores[~members.bool(), None])
    return float(won.sum() / total) if total else float("nan")


def _filled(scores: Tensor) -> Tensor:
    return torch.where(scores.isnan(), -torch.inf, scores).double()


def _won(inside: Tensor, outside: Tensor) -> tuple[Tensor, int]:
    """Pairs in the right order (q,) of columns (n, q) and (m, q), and the number of pairs."""
    inside, outside = inside.T.contiguous(), outside.T.contiguous()
    ordered = outside.sort(1).values
    below = torch.searchsorted(ordered, inside)
    upto = torch.searchsorted(ordered, inside, right=True)
    won = ((below + upto).double() / 2).sum(1)
    return won, inside.shape[1] * outside.shape[1]


# --- pairs within a client and class -----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Comparisons of each stratum, a client and class with both kinds.

    Shape: owner (S,), won (S, q), total (S,); usable (M,) marks candidates in a stratum; strata
    holds the indices of members and of others of each.
    """

    owner: Tensor
    won: Tensor
    total: Tensor
    usable: Tensor
    strata: list[tuple[Tensor, Tensor]]

    @property
    def compared(self) -> int:
        return int(self.usable.sum())


def _count_pairs(table: Tensor, members: Tensor, clients: Tensor, labels: Tensor) -> _Pairs:
    keys = torch.stack([clients, labels], dim=1)
    unique, group = torch.unique(keys, dim=0, return_inverse=True)
    owner, won, total, strata = [], [], [], []
    usable = torch.zeros(len(table), dtype=torch.bool)
    for number, (client, _) in enumerate(unique.tolist()):
        here = group == number
        inside = (here & members).nonzero().squeeze(1)
        outside = (here & ~members).nonzero().squeeze(1)
        if len(inside) and len(outside):
            right, count = _won(table[inside], table[outside])
            owner.append(client)
            won.append(right)
            total.append(count)
            strata.append((inside, outside))
            usable |= here
    columns = table.shape[1]
    return _Pairs(
        torch.tensor(owner, dtype=torch.int64),
        torch.stack(won) if won else torch.zeros(0, columns).double(),
        torch.tensor(total, dtype=torch.float64),
        usable,
        strata,
    )


BESIDE = ("baseline", "floor")
"""What an AUC stands beside."""


def _areas(
    table: Tensor,
    names: tuple[str, ...],
    members: Tensor,
    clients: Tensor,
    labels: Tensor,
    pairs: _Pairs,
    draws: int,
    seed: int,
) -> Summary:
    values = pairs.won.sum(0) / pairs.total.sum()
    drawn = _bootstrap(table, pairs, draws, seed)
    weights = torch.zeros(len(pairs.owner.unique())).double()
    weights.index_add_(0, pairs.owner.unique(return_inverse=True)[1], pairs.total)
    low, high = resampled(drawn, values, weights).interval(bounds=(0, 1))
    out: Summary = {
        "auc": float(values[0]),
        "auc_ci": [float(low[0]), float(high[0])],
        "auc_across_classes": _finite(_across(table[:, 0], members, clients)),
    }
    gap = resampled(drawn[:, :1] - drawn, values[:1] - values, weights)
    below, above = gap.interval()
    for name in BESIDE:
        place = names.index(name) + 1 if name in names else None
        out |= {
            f"auc_{name}": None if place is None else float(values[place]),
            f"auc_{name}_ci": None if place is None else [float(low[place]), float(high[place])],
            f"above_{name}": None if place is None else float(values[0] - values[place]),
            f"above_{name}_ci": None
            if place is None
            else [float(below[place]), float(above[place])],
        }
    return out


def _across(scores: Tensor, members: Tensor, clients: Tensor) -> float:
    """AUC within clients over all classes: support leakage is part of it."""
    pairs = _count_pairs(scores[:, None], members, clients, torch.zeros_like(clients))
    return float(pairs.won.sum() / pairs.total.sum()) if len(pairs.owner) else float("nan")


def _bootstrap(table: Tensor, pairs: _Pairs, draws: int, seed: int) -> Tensor:
    """AUC of each column under resampling of clients and of candidates within strata, (draws, q).

    The columns share the resamples, so their differences are paired.
    """
    owners, position = pairs.owner.unique(return_inverse=True)
    rng = stream(seed, "membership bootstrap")
    picked = torch.randint(len(owners), (draws, len(owners)), generator=rng)
    times = torch.zeros(draws, len(owners)).double()
    times.scatter_add_(1, picked, torch.ones_like(times))
    won = torch.zeros(draws, table.shape[1]).double()
    total = torch.zeros(draws).double()
    for number, (inside, outside) in enumerate(pairs.strata):
        weight = times[:, position[number]]
        first = _multiplicities(len(inside), draws, rng)
        second = _multiplicities(len(outside), draws, rng)
        for column in range(table.shape[1]):
            high, low = table[inside, column], table[outside, column]
            right = _ordered_pairs(first, second, high, low)
            won[:, column] += weight * right
        total += weight * len(inside) * len(outside)
    return won / total[:, None]


def _multiplicities(count: int, draws: int, rng: torch.Generator) -> Tensor:
    """How often each of `count` is drawn, with replacement, in each resample: (draws, count)."""
    picked = torch.randint(count, (draws, count), generator=rng)
    times = torch.zeros(draws, count).double()
    return times.scatter_add_(1, picked, torch.ones_like(times))


def _ordered_pairs(first: Tensor, second: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Pairs in the right order in each resample (draws,), ties as halves; n log n each."""
    order = low.argsort()
    ordered = low[order].contiguous()
    running = torch.nn.functional.pad(second[:, order].cumsum(1), (1, 0))
    below = torch.searchsorted(ordered, high.contiguous())
    upto = torch.searchsorted(ordered, high.contiguous(), right=True)
    return (first * (running[:, below] + running[:, upto]) / 2).sum(1)


# --- rates at a threshold ----------------------------------------------------------------------


def _standardised(scores: Tensor, clients: Tensor, labels: Tensor) -> Tensor:
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


def _rates(scores: Tensor, members: Tensor, usable: Tensor) -> Summary:
    """TPR at low FPR and balanced accuracy of pooled scores.

    `balanced_accuracy` answers member above the median of a client and class, the best guess
    where half of the candidates are members; `balanced_accuracy_best` takes the best threshold in
    hindsight and bounds it from above.
    """
    inside, outside = scores[usable & members], scores[usable & ~members]
    out: Summary = {}
    for rate in FALSE_POSITIVE_RATES:
        key, allowed = f"tpr_at_fpr_{rate:g}", int(len(outside) * rate + 1e-9)
        out[key], out[f"{key}_reason"] = None, None
        if allowed < 1:
            out[f"{key}_reason"] = (
                f"{len(outside)} candidates that are no members; a rate of {rate:g} needs at "
                f"least {round(1 / rate)}"
            )
            continue
        threshold = outside.sort(descending=True).values[allowed - 1 : allowed + 1][-1]
        out[key] = float((inside > threshold).double().mean())
    out["balanced_accuracy"] = float(
        ((inside > 0).double().mean() + (outside <= 0).double().mean()) / 2
    )
    levels = scores[usable].unique()
    hit = 1 - torch.searchsorted(inside.sort().values, levels, right=True) / len(inside)
    false = 1 - torch.searchsorted(outside.sort().values, levels, right=True) / len(outside)
    out["balanced_accuracy_best"] = max(0.5, float(((hit + 1 - false) / 2).max()))
    return out


# --- groups ------------------------------------------------------------------------------------


def _group(
    table: Tensor,
    names: tuple[str, ...],
    members: Tensor,
    clients: Tensor,
    labels: Tensor,
    sizes: Tensor,
    low: int,
    high: int | None,
    draws: int,
    seed: int,
) -> Summary | None:
    keep = sizes >= low
    if high is not None:
        keep &= sizes <= high
    pairs = _count_pairs(table[keep], members[keep], clients[keep], labels[keep])
    if not len(pairs.owner):
        return None
    kept = (members[keep], clients[keep], labels[keep])
    found = _areas(table[keep], names, *kept, pairs, draws, seed)
    return {"members": int((members & keep).sum()), "compared": pairs.compared, **found}


def _per_client(
    pairs: _Pairs, names: tuple[str, ...], members: Tensor, clients: Tensor
) -> pd.DataFrame:
    rows = []
    for client in pairs.owner.unique().tolist():
        mine = pairs.owner == client
        areas = (pairs.won[mine].sum(0) / pairs.total[mine].sum()).tolist()
        here = (clients == client) & pairs.usable
        rows.append(
            {
                "client": client,
                "members": int((here & members).sum()),
                "others": int((here & ~members).sum()),
                "auc": areas[0],
                **{f"auc_{name}": float("nan") for name in BESIDE},
                **{f"auc_{name}": area for name, area in zip(names, areas[1:], strict=True)},
            }
        )
    return pd.DataFrame(rows)


def _finite(value: float) -> float | None:
    return value if value == value else None
