"""Candidates for an image, moved until their representations become the one wanted.

A ridge regression over the candidates of a target learns how a change of the representation changes
the image there. No candidate is moved by a map that learnt from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from fedre_privacy.core.eigenvalues import symmetric_eigen

from .image_spectrum import cosines

FINEST = 19.2
"""Highest frequency that candidates are moved in: 0.6 of 32 pixels, where more gave no more."""
PENALTIES = (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Penalties tried for each band of frequencies, in mean eigenvalues of the scatter."""
WIDE = 512
"""Values of a representation beyond which candidates may be fewer than they."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a linear map tried, to which regressions shrink in place of nothing."""
NULL = 1e-7
"""Least sum of squares along a direction, in parts of the greatest; single precision ends there."""
OPEN = 0.01
"""Least share of the candidates that a regression leaves open; where less is, rounding decides."""
TINY = 1e-12

Changes = Callable[[Tensor, Tensor, Tensor, Sequence[int]], Tensor]
"""Representations (m, d) and coefficients (m, k) of the candidates of a target, the representation
wanted (d,), and how many coefficients each band has, in their order: to what should change in each
candidate's coefficients (m, k)."""


def kalman_update(
    members: Tensor,
    represent: Callable[[Tensor], Tensor],
    wanted: Tensor,
    waves: DctBands,
    changes: Changes,
) -> Tensor:
    """Move the candidates of a target once.

    Args:
        members: candidates (m, C, H, W).
        represent: images (m, C, H, W) to their representations (m, d), errors included.
        wanted: representation of the target (d,).

    Returns:
        Candidates (m, C, H, W), not clamped; NaN where a representation is not finite.
    """
    members = members.clamp(0, 1)
    reps = represent(members)
    if not bool(reps.isfinite().all() & wanted.isfinite().all()):
        return torch.full_like(members, torch.nan)
    return members + waves.images(changes(reps, waves.of(members), wanted, waves.sizes))


def leave_one_out(
    reps: Tensor,
    waves: Tensor,
    wanted: Tensor,
    sizes: Sequence[int],
    linear: Tensor | None = None,
) -> Tensor:
    """What should change in each candidate for its representation to become the one wanted.

    The map that moves a candidate is the ridge regression fitted without it, which follows from the
    one fitted to all. The penalty of each band is the one with the least generalised
    cross-validation (Golub, Heath and Wahba, Technometrics 1979).

    Args:
        reps: representations (m, d) of the candidates of a target. waves: coefficients (m, k).
        wanted: representation of the target (d,).
        sizes: coefficients of each band, in their order; k in all.
        linear: a map (d, k) that was fitted to other images. The regression of each band learns
            what a share of it leaves, chosen with the penalty, and needs fewer candidates.

    Returns:
        Changes of the coefficients (m, k).
    """
    live = (reps != reps[0]).any(0)  # units that are off for all candidates say nothing
    count, width = reps.shape
    centre = reps.mean(0)[live]
    reps, waves = reps[:, live] - centre, waves - waves.mean(0)
    values, axes = directions(reps)
    seen = reps @ axes
    missing = (wanted[live] - centre) @ axes - seen
    to_wave = seen.T @ waves
    tried = torch.tensor(PENALTIES).to(waves)
    shrink = 1 / (values + tried[:, None] * (values.sum() / width + TINY))
    left = 1 - (1 + (shrink * values).sum(1)) / count  # share of candidates not used up by the fit
    beyond = waves.square().sum(0) - (to_wave.square() / values[:, None]).sum(0)
    beyond = beyond.clamp(min=0)
    rests = [(to_wave, waves)]
    if linear is not None:
        read = reps @ linear[live]
        known = (wanted[live] - centre) @ linear[live] - read
        to_read = seen.T @ read
        rests += [(to_wave - part * to_read, waves - part * read) for part in SHARES[1:]]

    def errors(to_rest: Tensor) -> Tensor:
        reached = to_rest.square() / values[:, None]
        missed = ((1 - shrink * values).square() @ reached + beyond) / left.square()[:, None]
        held = torch.stack([part.sum(1) for part in missed.split(list(sizes), 1)], 1)
        return held.masked_fill(left[:, None] < OPEN, torch.inf)

    chosen = torch.cat([errors(to_rest) for to_rest, _ in rests]).argmin(0).tolist()
    numbers = [number % len(PENALTIES) for number in chosen]
    leaning = {
        number: _leave_one_out_terms(seen, missing, shrink[number]) for number in set(numbers)
    }
    parts = []
    for place, number, last, size in zip(chosen, numbers, accumulate(sizes), sizes, strict=True):
        share, band = place // len(PENALTIES), slice(last - size, last)
        lean, reach = leaning[number]
        to_rest, rest = rests[share]
        part = torch.addmm(lean * rest[:, band], reach, to_rest[:, band], beta=-1)
        parts.append(part + SHARES[share] * known[:, band] if share else part)
    return torch.cat(parts, 1)


def _leave_one_out_terms(seen: Tensor, missing: Tensor, shrink: Tensor) -> tuple[Tensor, Tensor]:
    """What each candidate (m, r) adds to its own change (m, 1), and the rest's reach (m, r)."""
    pulled = seen * shrink
    own = 1 / len(seen) + (pulled * seen).sum(1, keepdim=True)
    lean = (pulled * missing).sum(1, keepdim=True) / (1 - own).clamp(min=OPEN)
    return lean, (missing + lean * seen) * shrink


def without_fold(
    reps: Tensor, waves: Tensor, wanted: Tensor, sizes: Sequence[int], fold: Tensor
) -> Tensor:
    """What should change in each candidate for its representation to become the one wanted.

    One map is fitted without each fold, and moves it: candidates of a fold may share what others
    do not have. Penalties are those that err least, over all folds, on the candidates left out.

    Arguments and result as of `leave_one_out`; fold: of each candidate (m,).
    """
    live = (reps != reps[0]).any(0)  # units that are off for all candidates say nothing
    width, centre, middle = reps.shape[1], reps.mean(0)[live], waves.mean(0)
    reps, waves, wanted = reps[:, live] - centre, waves - middle, wanted[live] - centre
    tried = torch.tensor(PENALTIES).to(waves)
    widths = list(sizes)
    errors = waves.new_zeros(len(tried), len(widths))  # up to a constant
    folds = [_Fold.of(reps, waves, fold == one) for one in fold.unique().tolist()]
    scatter, both = sum(one.scatter for one in folds), sum(one.both for one in folds)
    maps = []
    for one in folds:
        count = len(reps) - len(one.reps)
        rep, wave = -one.reps.sum(0) / count, -one.waves.sum(0) / count
        left = scatter - one.scatter - count * torch.outer(rep, rep)
        values, axes = principal(left)
        to_wave = axes.T @ (both - one.both - count * torch.outer(rep, wave))
        shrink = 1 / (values + tried[:, None] * (left.trace() / width + TINY))
        seen, missed = (one.reps - rep) @ axes, one.waves - wave
        energy, agree = seen.T @ seen, (seen.T @ missed) * to_wave
        parts = zip(to_wave.split(widths, 1), agree.split(widths, 1), strict=True)
        for number, (to_band, agreeing) in enumerate(parts):
            squared = ((shrink @ (energy * (to_band @ to_band.T))) * shrink).sum(1)
            errors[:, number] += squared - 2 * shrink @ agreeing.sum(1)
        maps.append((one, axes, shrink, to_wave))
    chosen = errors.argmin(0).tolist()
    found = torch.empty_like(waves)
    for one, axes, shrink, to_wave in maps:
        missing = (wanted - one.reps) @ axes
        parts = zip(chosen, to_wave.split(widths, 1), strict=True)
        found[one.rows] = torch.cat([(missing * shrink[n]) @ to_band for n, to_band in parts], 1)
    return found


@dataclass(frozen=True)
class _Fold:
    """Candidates of a fold, all candidates' means at zero, and sums over them."""

    rows: Tensor
    reps: Tensor
    waves: Tensor
    scatter: Tensor
    both: Tensor

    @classmethod
    def of(cls, reps: Tensor, waves: Tensor, rows: Tensor) -> _Fold:
        """The candidates (m,) of which `rows` is true."""
        own, seen = reps[rows], waves[rows]
        return cls(rows, own, seen, own.T @ own, own.T @ seen)


def directions(reps: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (d, r) in which centred representations (n, d) differ, and their sums of squares.

    Of wide ones that are fewer than their values, the products of all pairs (n, n) tell the same.
    """
    count, width = reps.shape
    if width <= WIDE or width <= count:
        return principal(reps.T @ reps)
    exact = reps.double()
    values, mixed = symmetric_eigen(exact @ exact.T)
    kept = values > NULL * values[-1:].clamp(min=TINY)
    axes = exact.T @ mixed[:, kept] / values[kept].sqrt()
    return values[kept].to(reps), axes.to(reps)


def principal(scatter: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (d, r) in which a scatter (d, d) is not rounding, and its sums along them (r,).

    Arithmetic on the numbers of other directions also takes many times as long: they are so small.
    """
    values, axes = symmetric_eigen(scatter.double())
    kept = values > NULL * values[-1:].clamp(min=TINY)
    return values[kept].to(scatter), axes[:, kept].to(scatter)


WIDENING = 1.5
"""Each band of frequencies ends so many times higher than the one before."""


class DctBands:
    """Cosine coefficients of images (.., C, H, W) up to a frequency, one band after another.

    Args:
        shape: (C, H, W) of an image. finest: highest frequency, in half waves across the image.
    """

    def __init__(self, shape: tuple[int, int, int], finest: float, device: torch.device) -> None:
        channels, height, width = shape
        rows, columns = torch.arange(height) / height, torch.arange(width) / width
        radius = (rows[:, None].square() + columns.square()).sqrt() * max(height, width)
        seen = radius <= finest
        high, wide = int(seen.any(1).sum()), int(seen.any(0).sum())  # no other is ever computed
        steps = 1 + radius.clamp(min=0.5).log() / math.log(WIDENING)
        whole = steps.clamp(min=0).floor().long()[:high, :wide].expand(channels, high, wide)
        kept = seen[:high, :wide].expand(channels, high, wide).flatten().nonzero().flatten()
        kept = kept[whole.flatten()[kept].argsort(stable=True)]
        self.block = (channels, high, wide)
        self.down = cosines(height)[:high].to(device)
        self.across = cosines(width)[:wide].to(device)
        self.kept = kept.to(device)
        self.sizes: list[int] = [
            count for count in torch.bincount(whole.flatten()[kept]).tolist() if count
        ]
        """Coefficients in each band, from low frequencies to high ones."""

    def of(self, images: Tensor) -> Tensor:
        """Coefficients (.., k) of images."""
        made = self.down @ images @ self.across.T
        return made.flatten(-3).index_select(-1, self.kept)

    def images(self, coefficients: Tensor) -> Tensor:
        """Images with these coefficients (.., k) and no others."""
        whole = coefficients.new_zeros(*coefficients.shape[:-1], math.prod(self.block))
        whole.index_copy_(-1, self.kept, coefficients)
        images: Tensor = self.down.T @ whole.unflatten(-1, self.block) @ self.across
        return images
