"""Gaussian class statistics of representations, and what a mean betrays about its members.

An upload is a weighted mean R of representations. If a candidate entered it with weight a,
R is shifted by a (g(x) - mu), and its covariance lacks the candidate's part.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.eigenvalues import symmetric_eigen

SHRINK = 0.1
"""Added to the covariance: this times its mean variance."""
NOISE = 1e-4
"""Relative variance that always remains: single precision, a sample that is the whole upload."""
SIZES = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800, 1200, 2000)
"""Samples per class considered where their number is not known, equally likely."""


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Mean of each class and the inverse square root of the covariance within classes.

    Shape: means (C, d); whiten (d, d) with whiten @ whiten.T the inverse covariance; noise (d,),
    how much of the variance along each whitened direction clients draw, None: nothing.
    """

    means: Tensor
    whiten: Tensor
    noise: Tensor | None = None

    def white(self, rows: Tensor, centres: Tensor) -> Tensor:
        """Deviations from centres (n, d) in units of the spread within classes."""
        return (rows.double() - centres) @ self.whiten

    def whiten_symmetrically(self, rows: Tensor, centres: Tensor) -> Tensor:
        """The same as `white` in the coordinates of the representations (symmetric whitening)."""
        if self.noise is None:
            turn = self.whiten / self.whiten.norm(dim=0)
        else:
            left, _, right = torch.linalg.svd(self.whiten)
            turn = left @ right
        made: Tensor = self.white(rows, centres) @ turn.T
        return made

    def apart(self, rows: Tensor, others: Tensor, added: Tensor | float = 0.0) -> Tensor:
        """Distances (n, m) of rows (n, d) from others (m, d), in units of what clients draw.

        Args:
            added: variance of noise on others along whitened directions (d,).
        """
        centre = self.means[:1]
        one, other = (self.white(some, centre) for some in (rows, others))
        if self.noise is not None or isinstance(added, Tensor):
            usual = ((0.0 if self.noise is None else self.noise) + added + NOISE) ** -0.5
            one, other = one * usual, other * usual
        return torch.cdist(one, other)


def class_statistics(
    reps: Tensor, labels: Tensor, num_classes: int, noise: Tensor | None = None
) -> ClassStatistics:
    """Estimate class means and the covariance pooled within classes, shrunk to a multiple of I.

    A class without a row gets the mean of all.

    Args:
        reps: (n, d), n >= 1.
        labels: (n,) int64.
        noise: covariance (d, d) of what clients add at random, which counts as spread.
    """
    reps = reps.double()
    hot = torch.nn.functional.one_hot(labels.long(), num_classes).double()
    counts = hot.sum(0)[:, None]
    means = torch.where(counts > 0, hot.T @ reps / counts.clamp(min=1), reps.mean(0))
    inner = reps - means[labels.long()]
    freedom = max(1, len(reps) - int((counts > 0).sum()))
    covariance = inner.T @ inner / freedom
    level = covariance.diagonal().mean().clamp(min=1e-12)
    covariance = covariance + SHRINK * level * torch.eye(len(covariance)).to(covariance)
    if noise is not None:
        noise = noise.to(covariance)
        covariance = covariance + noise
    values, vectors = symmetric_eigen(covariance)
    whiten = vectors * values.clamp(min=1e-12).rsqrt()
    if noise is None:
        return ClassStatistics(means, whiten)
    shares, turn = symmetric_eigen(whiten.T @ noise @ whiten)
    return ClassStatistics(means, whiten @ turn, shares.clamp(0, 1))


def tracing_score(shift: Tensor, candidates: Tensor, gain: Tensor) -> Tensor:
    """Tracing score gain * (g(x) - mu)^T S^-1 (R - mu) of whitened deviations.

    Args:
        shift: whitened R - mu, (d,) or (M, d).
        candidates: whitened g(x) - mu (M, d).
        gain: weight of the candidate over the variance of R, (M,).
    """
    return gain * (candidates * shift).sum(1)


def log_likelihoods(
    shift: Tensor,
    candidates: Tensor,
    weight: Tensor,
    variance: Tensor,
    noise: Tensor | None = None,
    added: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-density of an upload with and without each candidate, up to a common constant.

    Without: R - mu ~ N(0, s S). With: R - mu ~ N(a (g(x) - mu), (s - a^2) S), where a is the
    candidate's weight and s the sum of all squared weights. For a prototype of n samples a = 1/n
    and s = 1/n. A candidate takes its part off the spread of images, not off what clients draw.

    Args:
        shift: whitened R - mu, (d,) or (M, d).
        candidates: whitened g(x) - mu (M, d).
        weight: a, broadcastable to (G, M); G is a grid of unknown sizes.
        variance: s, broadcastable to (G, M).
        noise: see `ClassStatistics`.
        added: variance (M, d) of noise on the row, along whitened directions; None: none.

    Returns:
        member (G, M) and other (G, M).
    """
    length = candidates.shape[1]
    shift = shift.expand_as(candidates)
    if noise is not None or added is not None:
        drawn = torch.zeros(length).to(shift) if noise is None else noise
        more = torch.zeros(length).to(shift) if added is None else added
        cases = list(zip(*torch.broadcast_tensors(weight, variance), strict=True))
        made = [_under_noise(shift, candidates, a, s, drawn, more) for a, s in cases]
        none = [_under_noise(shift, candidates, 0 * a, s, drawn, more) for a, s in cases]
        return torch.stack(made), torch.stack(none)
    own = shift.square().sum(1)
    cross, size = (shift * candidates).sum(1), candidates.square().sum(1)
    left = torch.maximum(variance - weight.square(), NOISE * variance)
    gap = own - 2 * weight * cross + weight.square() * size
    member = -0.5 * (length * left.log() + gap / left)
    other = -0.5 * (length * variance.log() + own / variance)
    return member, other


def _under_noise(
    shift: Tensor,
    candidates: Tensor,
    weight: Tensor,
    variance: Tensor,
    noise: Tensor,
    added: Tensor,
) -> Tensor:
    """Log-density (M,) with each candidate, for one weight and variance of each (M,)."""
    weight, variance = weight[:, None], variance[:, None]
    left = torch.maximum(variance - weight.square() * (1 - noise), NOISE * variance) + added
    gap = (shift - weight * candidates).square()
    density: Tensor = -0.5 * (left.log() + gap / left).sum(1)
    return density
