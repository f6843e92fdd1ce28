"""Positive random weights that sum to one (FedRE, Table 7)."""

from __future__ import annotations

import torch
from torch import Tensor

DISTRIBUTIONS = ("uniform", "gaussian", "laplace")
POSITIVE = ("abs", "softmax", "clamp", "redraw")


def positive_weights(
    count: int, rng: torch.Generator, *, distribution: str, positive: str
) -> Tensor:
    """Draw `count` weights and make them positive, not yet normalised.

    Uniform(0, 1), N(0, 1) or Laplace(0, 1). The paper does not say what happens to negative
    draws, which would put the label encoding outside the simplex; `positive` chooses: absolute
    value, softmax, clamp at 1e-6, or redraw until positive. A total that is almost zero falls
    back to equal weights.

    Returns:
        (count,) float64.
    """
    weights = _draw(count, rng, distribution)
    if positive == "abs":
        weights = weights.abs()
    elif positive == "softmax":
        weights = weights.softmax(0)
    elif positive == "clamp":
        weights = weights.clamp(min=1e-6)
    else:
        while (negative := weights <= 0).any():
            weights = torch.where(negative, _draw(count, rng, distribution), weights)
    return weights if weights.sum() >= 1e-12 else torch.ones_like(weights)


def _draw(count: int, rng: torch.Generator, distribution: str) -> Tensor:
    if distribution == "gaussian":
        return torch.randn(count, generator=rng, dtype=torch.float64)
    uniform = torch.rand(count, generator=rng, dtype=torch.float64)
    if distribution == "uniform":
        return uniform
    centred = uniform - 0.5
    return -centred.sign() * torch.log1p(-2 * centred.abs())
