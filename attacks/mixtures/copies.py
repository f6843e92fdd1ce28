"""What a mean of representations betrays where the extractor is known through copies alone.

Copies of a client disagree about the mean that it uploaded. With mu and S the mean and covariance
within classes as copies see them, and N what they disagree by, an upload R of which candidate x is
a part with weight a has R - mu ~ N(a (g(x) - mu), (s - a^2) S + k N), and one of which it is no
part R - mu ~ N(0, s S + k N), with s the sum of squared weights of all samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedre_privacy.core.eigen import symmetric_eigen

from .gaussians import NOISE

EVEN = 0.02
"""Added to what copies disagree by: this times the mean variance of representations."""
EXCESS = (1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4)
"""Tried values of k: how much further a client may lie from copies than they do from each other."""


@dataclass(frozen=True, eq=False)
class Copies:
    """Representations (M, n, d) float64 of the same images by M copies, and labels (n,)."""

    reps: Tensor
    labels: Tensor
    num_classes: int

    @cached_property
    def means(self) -> Tensor:
        """Class means of each copy (M, C, d); classes without an image get the mean of all."""
        hot = torch.nn.functional.one_hot(self.labels.long(), self.num_classes).double()
        counts = hot.sum(0)[:, None]
        found = hot.T @ self.reps / counts.clamp(min=1)
        return torch.where(counts > 0, found, self.reps.mean(1, keepdim=True))

    @cached_property
    def _covariances(self) -> tuple[Tensor, Tensor]:
        """Within classes, and of what copies disagree by on single images beyond their class."""
        inner = self.reps - self.means[:, self.labels.long()]
        middle = inner.mean(0)
        apart = (inner - middle).flatten(0, 1)
        freedom = max(1, len(middle) - len(self.labels.unique()))
        between = freedom * max(1, len(self.reps) - 1)
        return middle.T @ middle / freedom, apart.T @ apart / between

    def basis(self, rows: Tensor, size: float, kept: Tensor) -> Basis:
        """Coordinates in which images of a class, and copies, vary independently.

        Args:
            rows: the mean of the upload, as each copy makes it (M, d).
            size: sum of squared weights of its samples; so much of what copies disagree by on
                single images counts as well.
            kept: which numbers of a representation count (d,) bool.
        """
        within, single = (found[kept][:, kept] for found in self._covariances)
        apart = (rows - rows.mean(0))[:, kept]
        noise = apart.T @ apart / max(1, len(rows) - 1) + size * single
        even = noise.diagonal().mean() + EVEN * within.diagonal().mean().clamp(min=1e-12)
        noise = noise + even * torch.eye(len(noise)).to(noise)
        factor: Tensor = torch.linalg.cholesky(noise)
        half: Tensor = torch.linalg.solve_triangular(factor, within, upper=False)
        white: Tensor = torch.linalg.solve_triangular(factor, half.T, upper=False)
        spread, turn = symmetric_eigen(white)
        return Basis(torch.linalg.solve_triangular(factor.T, turn, upper=True), spread.clamp(min=0))


@dataclass(frozen=True, eq=False)
class Basis:
    """Coordinates z @ turn of deviations z (n, d): what copies disagree by has variance 1 in each.

    Shape: turn (d, d); spread (d,), the variance within classes.
    """

    turn: Tensor
    spread: Tensor


def log_odds(
    basis: Basis, shifts: Tensor, candidates: Tensor, weight: Tensor, variance: Tensor
) -> Tensor:
    """Log-odds that each candidate is part of each upload, (k, m).

    What the model leaves unexplained is estimated from the uploads alone, as the value of `EXCESS`
    under which they are most likely.

    Args:
        shifts: R - mu of uploads (k, d). candidates: g(x) - mu (m, d).
        weight: a, one for each of the equally likely possibilities (G,). variance: s (G,).
    """
    shifts, candidates = shifts @ basis.turn, candidates @ basis.turn
    left = torch.maximum(variance - weight.square(), NOISE * variance)
    found = []
    for excess in EXCESS:
        without = variance[:, None] * basis.spread + excess
        found.append((float(_outside(shifts, without).logsumexp(0).sum()), excess))
    excess = max(found)[1]
    without = variance[:, None] * basis.spread + excess
    within = left[:, None] * basis.spread + excess
    member = torch.stack(
        [
            -0.5 * (v.log().sum() + _gaps(shifts, candidates, a, v))
            for a, v in zip(weight, within, strict=True)
        ]
    )
    return member.logsumexp(0) - _outside(shifts, without).logsumexp(0)[:, None]


def _outside(shifts: Tensor, variances: Tensor) -> Tensor:
    """Log-densities (G, k) of deviations (k, d) under variances (G, d), up to a constant."""
    gaps = (1 / variances) @ shifts.square().T
    return -0.5 * (variances.log().sum(1, keepdim=True) + gaps)


def _gaps(shifts: Tensor, candidates: Tensor, weight: Tensor, variances: Tensor) -> Tensor:
    """Sum over coordinates of (shift - weight * candidate)^2 / variance, (k, m)."""
    scaled = shifts / variances
    own = (scaled * shifts).sum(1)[:, None]
    cross = scaled @ candidates.T
    square = (candidates.square() / variances).sum(1)
    gaps: Tensor = own - 2 * weight * cross + weight.square() * square
    return gaps
