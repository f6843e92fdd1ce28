"""Score membership attacks over worlds: rates of alarms, their uncertainty, risk of each record.

A world is a federation whose members were chosen by fair coins. Within a world scores depend on
each other, as slots share models; worlds are independent of each other, given the pool of samples.
So an interval is the wider of Clopper-Pearson's, which takes every guess as independent, and that
of a bootstrap over worlds. Pure functions of tensors.

References: Carlini et al., Membership inference attacks from first principles, S&P 2022, Section IV
(low rates of alarms); Benjamini and Hochberg, JRSS-B 1995 (false discoveries).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import scipy  # type: ignore[import-untyped]
import torch
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]
from torch import Tensor

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.units import plural

from .intervals import DRAWS, LEVEL
from .lower_bounds import ALPHA, share_interval
from .membership import auc
from .paired_comparisons import count_pairs, fill_missing
from .roc import tpr_at

DISCOVERIES = 0.1
"""Share of wrong names that a list of exposed records may have (Benjamini-Hochberg)."""
SHOWN = 10
"""Records that are listed."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class RateShown:
    """Members found at a rate of false alarms, over all worlds.

    Args:
        rate: of false alarms at most.
        tpr, interval: share of members found, None where too few others are there.
        note: why there is none.
    """

    rate: float
    tpr: float | None = None
    interval: Interval | None = None
    note: str = ""


@dataclass(frozen=True)
class ShadowMembershipScore:
    """What an attack found in all worlds.

    Args:
        auc, auc_interval: mean over worlds of the share of pairs (member, other) in order.
        auc_within: the same over pairs of one client and class.
        rates: members found at low rates of false alarms.
        worlds: behind them.
    """

    auc: float
    auc_interval: Interval
    auc_within: float
    rates: tuple[RateShown, ...]
    worlds: int


@dataclass(frozen=True)
class RecordRisk:
    """How often the attack that told it most often told whether one record had trained.

    Args:
        slot: its number. attack: which attack that is.
        right: of `worlds` guesses by the median of its client.
        interval: of the share of right guesses (Clopper-Pearson; worlds are independent), at a
            level that allows for the choice among attacks (Bonferroni).
        exposed: whether it is among the names at `DISCOVERIES`.
    """

    slot: int
    attack: str
    right: int
    worlds: int
    interval: Interval
    exposed: bool


def check_rates(rates: Sequence[float], worlds: int, slots: int) -> None:
    """Refuse rates of false alarms that so many worlds and slots cannot show.

    Raises:
        ConfigError: a rate out of range, or fewer non-members than 1 / rate to be expected.
    """
    odd = [rate for rate in rates if not 0 < rate < 1]
    if odd:
        raise ConfigError(f"A false-positive rate is {odd[0]:g}; it must lie between 0 and 1.")
    others = worlds * slots // 2
    least = min(rates, default=1.0)
    if others * least < 1:
        raise ConfigError(
            f"A false-positive rate of {least:g} needs {math.ceil(1 / least - 1e-9):,} "
            f"non-members; {plural(worlds, 'world')} of {plural(slots, 'slot')} have about "
            f"{others:,}, with which rates down to {1 / max(others, 1):.2g} can be had.",
            next_step=f"Use --worlds {math.ceil(2 / (least * slots))}, or a higher rate.",
        )


def evaluate_shadow_membership(
    scores: Tensor,
    coins: Tensor,
    clients: Tensor,
    labels: Tensor,
    *,
    rates: Sequence[float],
    draws: int = DRAWS,
    seed: int = 0,
) -> ShadowMembershipScore:
    """Score an attack, with intervals by a bootstrap over worlds.

    Args:
        scores: (W, n) higher means member, comparable over slots and worlds; NaN is lowest.
        coins: (W, n) bool. clients, labels: of the slots (n,).

    Raises:
        IncompatibleError: shapes differ, fewer than two worlds, or a world without both kinds.
    """
    if scores.shape != coins.shape or len(scores) < 2:
        raise IncompatibleError(
            f"Scores are {tuple(scores.shape)} and coins {tuple(coins.shape)}; both must be "
            "(worlds, slots), of two worlds at least."
        )
    if not bool((coins.any(1) & ~coins.all(1)).all()):
        raise IncompatibleError("A world has no member, or nothing but members, among its slots.")
    scores = fill_missing(scores)
    each = torch.tensor([auc(s, c) for s, c in zip(scores, coins, strict=True)]).double()
    picked = torch.randint(
        len(each), (draws, len(each)), generator=stream(seed, "worlds bootstrap")
    )
    ends = _ends(each[picked].mean(1))
    times = torch.zeros(draws, len(each)).double()
    times.scatter_add_(1, picked, torch.ones_like(times))
    shown = tuple(_rate(scores, coins, rate, times) for rate in rates)
    within = _within(scores, coins, clients, labels)
    return ShadowMembershipScore(float(each.mean()), ends, within, shown, len(scores))


def _ends(values: Tensor) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = values.double().quantile(torch.tensor([tail, 1 - tail]).double()).tolist()
    return low, high


def _within(scores: Tensor, coins: Tensor, clients: Tensor, labels: Tensor) -> float:
    """AUC over pairs of one world, client and class; NaN where there is no such pair."""
    each = [count_pairs(s[:, None], c, clients, labels) for s, c in zip(scores, coins, strict=True)]
    total = sum(float(pairs.total.sum()) for pairs in each)
    return sum(float(pairs.won.sum()) for pairs in each) / total if total else float("nan")


def _rate(scores: Tensor, coins: Tensor, rate: float, times: Tensor) -> RateShown:
    """The true-positive rate of all worlds together, with the wider of two intervals."""
    others = int((~coins).sum())
    found = tpr_at(scores[coins], scores[~coins], rate)
    if found is None:
        needed = math.ceil(1 / rate - 1e-9)
        why = f"{others:,} non-members; a rate of {rate:g} needs {needed:,}"
        return RateShown(rate, note=why)
    # thresholds that a resample may come to: the highest scores of non-members
    top = min(others, 4 * int(others * rate) + 50)
    levels = scores[~coins].topk(top).values
    hits, alarms = _above(scores, coins, levels), _above(scores, ~coins, levels)
    members, rest = coins.sum(1).double(), (~coins).sum(1).double()
    allowed = (times @ rest * rate + 1e-9).floor()
    fits = (times @ alarms) <= allowed[:, None]
    drawn = torch.where(fits, times @ hits, 0.0).amax(1) / (times @ members)
    low, high = _ends(drawn)
    exact = found.interval
    return RateShown(rate, found.tpr, (min(low, exact[0]), max(high, exact[1])))


def _above(scores: Tensor, where: Tensor, levels: Tensor) -> Tensor:
    """Scores of each world above each level, of some slots: (W, levels) float64."""
    rows = []
    for own, here in zip(scores, where, strict=True):
        upto = torch.searchsorted(own[here].sort().values, levels, right=True)
        rows.append((int(here.sum()) - upto).double())
    return torch.stack(rows)


def chance(coins: Tensor, rates: Sequence[float]) -> ShadowMembershipScore:
    """What scores without any knowledge come to, with the interval that 95 % of them fall in."""
    inside, outside = coins.sum(1).double(), (~coins).sum(1).double()
    variance = (inside + outside + 1) / (12 * inside * outside)
    half = float(ndtri((1 + LEVEL) / 2)) * float(variance.sum().sqrt()) / len(coins)
    members, others = int(inside.sum()), int(outside.sum())
    tail = (1 - LEVEL) / 2
    shown = []
    for rate in rates:
        if others * rate < 1:
            shown.append(RateShown(rate, note=f"{others:,} non-members"))
            continue
        low, high = (
            float(scipy.stats.binom.ppf(p, members, rate)) / members for p in (tail, 1 - tail)
        )
        shown.append(RateShown(rate, rate, (low, high)))
    return ShadowMembershipScore(0.5, (0.5 - half, 0.5 + half), 0.5, tuple(shown), len(coins))


def most_of_mu(mu: float, rates: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """The AUC and the true-positive rates that no attack on a mu-Gaussian claim can exceed."""
    caps = tuple(float(ndtr(ndtri(rate) + mu)) for rate in rates)
    return float(ndtr(mu / math.sqrt(2))), caps


def record_risk(scores: Mapping[str, Tensor], coins: Tensor, clients: Tensor) -> list[RecordRisk]:
    """Risk of every slot, the most exposed first, by the attack that tells it most often.

    A slot is called a member in a world where its score lies above the median of its client's
    slots, a rule that no coin enters. Names are at a share of false discoveries of 10 %; the
    choice among attacks is paid for (Bonferroni).

    Args:
        scores: of each attack, (W, n). coins: (W, n). clients: (n,).
    """
    worlds, names = len(coins), list(scores)
    told = torch.stack([_worlds_right(one, coins, clients) for one in scores.values()])
    right, by = told.max(0)
    chances = [float(scipy.stats.binom.sf(int(k) - 1, worlds, 0.5)) for k in right]
    p = (torch.tensor(chances) * len(names)).clamp(max=1.0)
    exposed = scipy.stats.false_discovery_control(p.double().numpy()) <= DISCOVERIES
    found = [
        RecordRisk(
            slot,
            names[attack],
            k,
            worlds,
            share_interval(k, worlds, ALPHA / len(names)),
            bool(exposed[slot]),
        )
        for slot, (k, attack) in enumerate(zip(right.tolist(), by.tolist(), strict=True))
    ]
    return sorted(found, key=lambda one: -one.right)


def fewest_exposed(worlds: int, records: int, attacks: int) -> int:
    """Fewest records, told in every world, that `record_risk` names; maybe more than there are.

    Args:
        worlds, records, attacks: as many as there are, at least 1 each.
    """
    return max(1, math.ceil(records * attacks * 0.5**worlds / DISCOVERIES - 1e-9))


def _worlds_right(scores: Tensor, coins: Tensor, clients: Tensor) -> Tensor:
    """In how many worlds an attack is right about each slot, (n,)."""
    scores = fill_missing(scores)
    guesses = torch.empty_like(coins)
    for client in clients.unique().tolist():
        mine = clients == client
        guesses[:, mine] = scores[:, mine] > scores[:, mine].median(1, keepdim=True).values
    return (guesses == coins).sum(0)


def blind_scores(images: Tensor, labels: Tensor, clients: Tensor, coins: Tensor) -> Tensor:
    """A classifier that sees no upload: pixels, class and class size to membership, (W, n).

    Ridge regression of the coins on pixels, learnt on half of a world's slots and read off on the
    other half, and the other way round. Fair coins leave it at chance; where it is not, members
    and others differ by more than membership.

    Args:
        images: (n, C, H, W). labels, clients: (n,). coins: (W, n) bool.
    """
    pixels = images.double().flatten(1)
    hot = torch.nn.functional.one_hot(labels.long()).double()
    same = (labels[:, None] == labels) & (clients[:, None] == clients)
    size = same.sum(1, keepdim=True).double()
    seen = torch.cat([pixels, hot, size / size.max()], 1)
    seen = seen - seen.mean(0)
    kernel = seen @ seen.T
    kernel = kernel / kernel.diagonal().mean().clamp(min=1e-12)
    half = torch.arange(len(labels)) % 2 == 0
    out = torch.empty(coins.shape, dtype=torch.float64)
    for learnt in (half, ~half):
        block = kernel[learnt][:, learnt]
        block = block + 0.1 * torch.eye(len(block)).double()
        answers = coins[:, learnt].double()
        weights = torch.linalg.solve(block, (answers - answers.mean(1, keepdim=True)).T)
        out[:, ~learnt] = (kernel[~learnt][:, learnt] @ weights).T
    return out
