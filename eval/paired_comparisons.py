"""Pairs of a member and another candidate, compared within a client and class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.rng import stream


def fill_missing(scores: Tensor) -> Tensor:
    """Scores in double precision, those that are missing below all others."""
    return torch.where(scores.isnan(), -torch.inf, scores).double()


def pairs_won(inside: Tensor, outside: Tensor) -> tuple[Tensor, int]:
    """Pairs in the right order (q,) of columns (n, q) and (m, q), and the number of pairs."""
    inside, outside = inside.T.contiguous(), outside.T.contiguous()
    ordered = outside.sort(1).values
    below = torch.searchsorted(ordered, inside)
    upto = torch.searchsorted(ordered, inside, right=True)
    won = ((below + upto).double() / 2).sum(1)
    return won, inside.shape[1] * outside.shape[1]


@dataclass(frozen=True, eq=False)
class Comparisons:
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
        """Candidates that were compared with another."""
        return int(self.usable.sum())


def count_pairs(table: Tensor, members: Tensor, clients: Tensor, labels: Tensor) -> Comparisons:
    """Compare members with others of the same client and class.

    Shape: table (M, q), one column of scores each; members, clients and labels (M,).
    """
    keys = torch.stack([clients, labels], dim=1)
    unique, group = torch.unique(keys, dim=0, return_inverse=True)
    owner, won, total, strata = [], [], [], []
    usable = torch.zeros(len(table), dtype=torch.bool)
    for number, (client, _) in enumerate(unique.tolist()):
        here = group == number
        inside = (here & members).nonzero().squeeze(1)
        outside = (here & ~members).nonzero().squeeze(1)
        if len(inside) and len(outside):
            right, count = pairs_won(table[inside], table[outside])
            owner.append(client)
            won.append(right)
            total.append(count)
            strata.append((inside, outside))
            usable |= here
    columns = table.shape[1]
    return Comparisons(
        torch.tensor(owner, dtype=torch.int64),
        torch.stack(won) if won else torch.zeros(0, columns).double(),
        torch.tensor(total, dtype=torch.float64),
        usable,
        strata,
    )


def bootstrap(table: Tensor, pairs: Comparisons, draws: int, seed: int) -> Tensor:
    """AUC of each column under resampling of clients and of candidates within strata, (draws, q).

    The columns share the resamples, so their differences are paired.
    """
    owners, position = pairs.owner.unique(return_inverse=True)
    rng = stream(seed, "membership bootstrap")
    times = multiplicities(len(owners), draws, rng)
    won = torch.zeros(draws, table.shape[1]).double()
    total = torch.zeros(draws).double()
    for number, (inside, outside) in enumerate(pairs.strata):
        weight = times[:, position[number]]
        first = multiplicities(len(inside), draws, rng)
        second = multiplicities(len(outside), draws, rng)
        for column in range(table.shape[1]):
            high, low = table[inside, column], table[outside, column]
            right = _ordered_pairs(first, second, high, low)
            won[:, column] += weight * right
        total += weight * len(inside) * len(outside)
    return won / total[:, None]


def multiplicities(count: int, draws: int, rng: torch.Generator) -> Tensor:
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
