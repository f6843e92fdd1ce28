"""Mixtures that were shortened to a bound before they were sent: by how much, and undone.

Shortening multiplies an upload by an unknown number below 1, so mixtures no longer fit one set of
prototypes. How long they were is told by class means of auxiliary images in the weights sent, and
by the other rounds: mixtures of the same prototypes must agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

SPREAD = 0.15
"""Standard deviation of a true factor about the one expected, relative to it."""
PASSES = 3
KNOWN = 1e6


def expected_factors(weights: Tensor, means: Tensor, bound: float) -> Tensor:
    """By how much mixtures of class means would have been shortened, (T,), at least 1.

    Args:
        weights: (T, n). means: (T, n, d) of each round. bound: length S.
    """
    lengths = (weights[:, None, :] @ means).squeeze(1).norm(dim=1)
    longer: Tensor = (lengths / bound).clamp(min=1)
    return longer


def factors_that_agree(
    weights: Tensor, base: Tensor, carried: Tensor, expected: Tensor, known: Tensor
) -> Tensor:
    """Factors a (T,) for which base + a * carried fit mixtures of the same prototypes best.

    Minimises the squared rest of base + diag(a) carried after least squares on the weights, over
    its variance, plus the squared distance of a to what is expected, over that of `SPREAD`. The
    rest is quadratic in a. With no more rounds than classes nothing is left to agree on, and the
    answer is what is expected.

    Args:
        weights: (T, n).
        base, carried: (T, d), an upload multiplied by a is carried over to base + a * carried.
        expected: (T,).
        known: (T,) whether the factor is the expected one for certain.
    """
    rounds, dims = carried.shape
    left = rounds - int(torch.linalg.matrix_rank(weights))
    if left < 1:
        return expected
    eye = torch.eye(rounds, dtype=weights.dtype)
    rest = eye - weights @ torch.linalg.pinv(weights)
    curvature, slope = rest * (carried @ carried.T), ((rest @ base) * carried).sum(1)
    sure = torch.where(known, KNOWN, 1.0) / (SPREAD * expected).square()
    found = expected
    for _ in range(PASSES):
        variance = (rest @ (base + found[:, None] * carried)).square().sum() / left / dims
        penalty = variance.clamp(min=1e-12) * sure
        found = torch.linalg.solve(curvature + penalty.diag(), penalty * expected - slope)
        found = found.clamp(min=1)
    return found
