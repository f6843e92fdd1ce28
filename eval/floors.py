"""Answers that need no upload: what an attack must beat before it counts as leakage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Truth

from .intervals import precision
from .matching import support_pairs

FLOORS = {
    "grey": "every pixel 0.5",
    "mean-colour": "the mean colour of the public images",
    "mean-image": "the pixel mean of the public images",
    "class-mean-image": "the pixel mean of the public images of the target's class "
    "(of all of them where the target mixes classes)",
    "random-image": "a random public image",
    "random-same-class": "a random public image of the target's class "
    "(of any where the target mixes classes)",
    "prior-only": "the attack's output before it saw the target",
    "mismatched": "the attack's answer to somebody else's upload",
}
"""Floors by name, each in words."""

DRAWS = 3
"""Random floors are drawn this often and their scores averaged."""

_GROUP = 1000
"""Derangements are made within random groups of at most so many targets."""


@dataclass(frozen=True, eq=False)
class PublicImages:
    """Held-out images, disjoint from every client's training data (the caller's duty).

    Shape:
        images (m, C, H, W) in [0, 1], m >= 1; labels (m,) in the same coding as the truth's.

    Raises:
        IncompatibleError: no image, or lengths that differ.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or not len(self.images) or len(self.images) != len(self.labels):
            raise IncompatibleError(
                f"Public images have shape {tuple(self.images.shape)} with {len(self.labels)} "
                "labels; needed are (m, C, H, W) with m >= 1 and one label each.",
                next_step="Set aside some held-out images, for example the test split.",
            )


def floor_answers(
    rec: Reconstruction, truth: Truth, public: PublicImages, *, seed: int = 0, draws: int = DRAWS
) -> Iterator[tuple[str, Tensor]]:
    """Yield every floor's answers to the N targets, a random floor once per draw.

    Args:
        rec: the attack's result; only ``prior-only`` and ``mismatched`` read it.
        truth: the N targets; only their number, owners, classes and supports are read.

    Yields:
        (name, answers (N, C, H, W) in [0, 1]), in the order of `FLOORS`. A row of the prior that
        is not finite is black. Rows of ``mismatched`` without another target to borrow from are
        NaN; a floor without any answer is left out.
    """
    count, images = truth.mixture.num_rows, public.images
    shape = (count, *images.shape[1:])
    mean = images.mean(dim=0)
    yield "grey", images.new_full((1, 1, 1, 1), 0.5).expand(shape)
    yield "mean-colour", mean.mean(dim=(1, 2), keepdim=True).expand(shape)
    yield "mean-image", mean.expand(shape)
    yield "class-mean-image", _class_means(truth, public, mean)
    for draw in range(draws):
        rng = stream(seed, "floor-random", index=draw)
        yield "random-image", images[torch.randint(len(images), (count,), generator=rng)]
    for draw in range(draws):
        rng = stream(seed, "floor-same-class", index=draw)
        yield "random-same-class", images[_same_class(truth, public, rng)]
    if rec.prior.isfinite().any():
        given = rec.prior.isfinite().flatten(1).all(dim=1).reshape(-1, 1, 1, 1)
        yield "prior-only", torch.where(given, rec.prior, 0.0)
    for donors in mismatches(truth, diverged_targets(rec), draws=draws, seed=seed):
        if (donors >= 0).any():
            answers = rec.images[donors.clamp_min(0)].clone()
            answers[donors < 0] = float("nan")
            yield "mismatched", answers


def diverged_targets(rec: Reconstruction) -> Tensor:
    """Targets that the attack reported as diverged or answered with non-finite values, (N,)."""
    return rec.diverged.bool().cpu() | ~rec.images.isfinite().flatten(1).all(dim=1).cpu()


def worst_of(scores: Sequence[Tensor], *, higher_leaks: bool) -> Tensor:
    """The worst score of each target (N,): what a target counts that an attack gave up.

    With the scores of a black image and of every floor's answers, giving a target up never scores
    higher than answering it with any of them.

    Args:
        scores: (N,) each, of one metric; NaN is no score.
        higher_leaks: whether a higher score is a better one.
    """
    table = torch.stack(list(scores))
    lost = torch.inf if higher_leaks else -torch.inf
    table = table.masked_fill(table.isnan(), lost)
    return table.amin(dim=0) if higher_leaks else table.amax(dim=0)


@dataclass(frozen=True, eq=False)
class ChosenFloor:
    """The floor of each target by one metric, chosen without looking at its client.

    Args:
        names: of the floors that have an answer to every target.
        which: (N,) int64, position in `names`.
        values: (N,) float64, the metric of that floor; NaN without any.
        table: (F, N) float64, the metric of every floor in `names`.
        fold: (N,) int64, what was left out with each target: its client, numbered from 0.
        higher_leaks: whether a higher value is a better answer.
    """

    names: tuple[str, ...]
    which: Tensor
    values: Tensor
    table: Tensor
    fold: Tensor
    higher_leaks: bool

    def jackknife(self, attack: Tensor, inside: Tensor) -> float:
        """Variance of the mean difference to the floor with the choice in it, 0 if unknown.

        Targets share the choice, which the spread of their differences does not show. So each
        client is left out in turn, floors are chosen anew and the mean of `intervals.clustered`
        is taken again.

        Args:
            attack: (N,) the attack's metric.
            inside: (N,) bool, the targets that the mean is over; all of them choose.
        """
        mine = torch.nn.functional.one_hot(self.fold).double()
        count = mine.sum(dim=0)
        clients = len(count)
        kept = mine * inside.double().unsqueeze(1)
        held = (kept.sum(dim=0) > 0).nonzero().squeeze(1)
        if not self.names or clients < 3 or len(held) < 2:
            return 0.0
        sums = self.table @ mine
        rest = sums.sum(dim=1)[:, None, None] - sums[:, :, None] - sums[:, None, :]
        others = (len(self.fold) - count[:, None] - count[None, :]).clamp(min=1)
        means = rest / others if self.higher_leaks else -rest / others
        choice = torch.from_numpy(means.numpy().argmax(axis=0))
        floor = (self.table @ kept).gather(0, choice)  # (client left out, client answered)
        gap = (attack.nan_to_num(0.0).double() @ kept) - floor
        stays = 1 - torch.eye(clients, dtype=torch.float64)
        inside_of = kept.sum(dim=0)
        weight = precision(inside_of)
        gap = gap / inside_of.clamp(min=1) * weight
        found = ((gap * stays).sum(dim=1) / (weight * stays).sum(dim=1))[held]
        scale = (len(held) - 1) / len(held)
        return float(scale * (found - found.mean()).square().sum())

    def counts(self) -> dict[str, int]:
        """How many targets each chosen floor stands for, the most frequent first."""
        if not self.names:
            return {}
        found = torch.bincount(self.which, minlength=len(self.names)).tolist()
        pairs = sorted(zip(self.names, found, strict=True), key=lambda pair: -pair[1])
        return {name: count for name, count in pairs if count}

    @property
    def name(self) -> str | None:
        """The floor chosen for most targets."""
        return next(iter(self.counts()), None)


def cross_fit(floors: Mapping[str, Tensor], clients: Tensor, *, higher_leaks: bool) -> ChosenFloor:
    """Choose the best floor for each client's targets by the mean over all other clients'.

    On the targets that chose it the best of many noisy means is too good by luck (cross-fitting:
    Chernozhukov et al., Econometrics Journal 21, 2018). The first of equals is taken. Targets of
    a single client are left out one by one; a single target chooses on itself.

    Args:
        floors: name to the metric of each target (N,); floors with a NaN are not considered.
        clients: (N,) int64, whose target each is; N at least 1.
        higher_leaks: whether a higher value is a better answer.
    """
    kept = {name: value.double() for name, value in floors.items() if value.isfinite().all()}
    if not kept:
        none = torch.zeros(len(clients), dtype=torch.int64)
        absent = torch.full((len(clients),), torch.nan, dtype=torch.float64)
        return ChosenFloor((), none, absent, absent.unsqueeze(0)[:0], none, higher_leaks)
    table = torch.stack(list(kept.values()))
    fold = torch.unique(clients, return_inverse=True)[1]
    if int(fold.max()) == 0:
        fold = torch.arange(len(clients))
    inside = torch.nn.functional.one_hot(fold).double()
    own, count = table @ inside, inside.sum(dim=0)
    others = len(clients) - count
    means = (table.sum(dim=1, keepdim=True) - own) / others if len(clients) > 1 else own
    best = (means if higher_leaks else -means).numpy().argmax(axis=0)
    which = torch.from_numpy(best)[fold]
    values = table.gather(0, which.unsqueeze(0)).squeeze(0)
    return ChosenFloor(tuple(kept), which, values, table, fold, higher_leaks)


def _class_means(truth: Truth, public: PublicImages, mean: Tensor) -> Tensor:
    classes, which = torch.unique(public.labels.long(), return_inverse=True)
    sums = mean.new_zeros((len(classes), *mean.shape)).index_add_(0, which, public.images)
    counts = torch.bincount(which, minlength=len(classes))
    table = torch.cat([sums / counts.reshape(-1, 1, 1, 1), mean.unsqueeze(0)])
    return table[_class_positions(truth, classes)]


def _class_positions(truth: Truth, classes: Tensor) -> Tensor:
    """Position of each target's class in `classes`; len(classes) where it has none of them."""
    hits = truth.target_labels.long().cpu().unsqueeze(1) == classes
    return torch.where(hits.any(dim=1), hits.long().argmax(dim=1), len(classes))


def _same_class(truth: Truth, public: PublicImages, rng: torch.Generator) -> Tensor:
    """A random public image for each target, of its class where there is one: (N,) indices."""
    labels = public.labels.long().cpu()
    order = labels.argsort(stable=True)
    classes, counts = torch.unique(labels, return_counts=True)
    starts = torch.cat([counts.cumsum(0) - counts, torch.zeros(1, dtype=torch.int64)])
    counts = torch.cat([counts, torch.tensor([len(labels)])])
    position = _class_positions(truth, classes)
    share = torch.rand(len(position), generator=rng, dtype=torch.float64)
    return order[starts[position] + (share * counts[position]).long()]


def mismatches(truth: Truth, unusable: Tensor, *, draws: int = DRAWS, seed: int = 0) -> Tensor:
    """Choose, for each target, other targets whose answers it borrows.

    A draw is a random derangement: no target keeps its own answer and every usable answer goes to
    one usable target. Targets that are not usable, those that the attack gave up, borrow in the
    same way but lend nothing. Pairs from different clients are preferred. Pairs whose supports
    share an image are never used, because the other's answer may rightly show it: a target that
    the derangement leaves with such a pair borrows from any target without overlap instead, and
    from nobody (-1) if there is none.

    Args:
        unusable: (N,) bool; these lend nothing.

    Returns:
        (draws, N) int64: the target borrowed from, or -1.
    """
    out = torch.full((draws, len(unusable)), -1, dtype=torch.int64)
    kept = (~unusable).nonzero().squeeze(1).numpy()
    if not len(kept):
        return out
    lost = unusable.nonzero().squeeze(1).numpy()
    rows, samples = (part.numpy() for part in support_pairs(truth))
    entered = scipy.sparse.csr_matrix(
        (np.ones(len(rows), dtype=np.int32), (rows, samples)),
        shape=(len(unusable), len(truth.images)),
    )
    clients = truth.target_clients.numpy()
    for draw in range(draws):
        rng = stream(seed, "mismatched", index=draw)
        shuffled = kept[torch.randperm(len(kept), generator=rng).numpy()]
        for group in np.array_split(shuffled, -(-len(kept) // _GROUP)):
            donors = _derange(entered[group], clients[group], rng)
            borrowed = np.where(donors < 0, -1, group[donors])
            out[draw, torch.from_numpy(group)] = torch.from_numpy(borrowed)
        for part in np.array_split(lost, -(-len(lost) // _GROUP)) if len(lost) else ():
            lenders = shuffled[:_GROUP]
            cost = _cost(entered[part], entered[lenders], clients[part], clients[lenders], rng)
            nearest = np.where(np.isinf(cost).all(axis=1), -1, lenders[cost.argmin(axis=1)])
            out[draw, torch.from_numpy(part)] = torch.from_numpy(nearest)
    return out


def _cost(
    mine: scipy.sparse.csr_matrix,
    theirs: scipy.sparse.csr_matrix,
    my_clients: NDArray[np.int64],
    their_clients: NDArray[np.int64],
    rng: torch.Generator,
) -> NDArray[np.float64]:
    """What borrowing costs: random, more from the same client, infinite where images are shared."""
    overlap = (mine @ theirs.T).toarray() > 0
    cost = torch.rand(overlap.shape, generator=rng, dtype=torch.float64).numpy()
    cost += (my_clients[:, None] == their_clients[None, :]) * 10.0
    return np.where(overlap, np.inf, cost)


def _derange(
    entered: scipy.sparse.csr_matrix, clients: NDArray[np.int64], rng: torch.Generator
) -> NDArray[np.int64]:
    """One derangement of n targets, as positions; -1 where no donor without overlap exists."""
    count = len(clients)
    overlap = (entered @ entered.T).toarray() > 0
    np.fill_diagonal(overlap, True)
    # Tiers far apart: a forbidden pair costs more than any number of mere same-client pairs.
    cost = torch.rand(overlap.shape, generator=rng, dtype=torch.float64).numpy()
    cost += (clients[:, None] == clients[None, :]) * 10.0 * count
    cost += overlap * 100.0 * count**2
    np.fill_diagonal(cost, 1000.0 * count**3)
    donors = np.asarray(scipy.optimize.linear_sum_assignment(cost)[1], dtype=np.int64)
    cost[overlap] = np.inf
    donors = np.where(overlap[np.arange(count), donors], cost.argmin(axis=1), donors)
    return np.where(np.isinf(cost).all(axis=1), -1, donors)
