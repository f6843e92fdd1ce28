"""How far a simulated gradient is from the uploaded one: one number per row, lower is closer.

Each takes lists of tensors, one per parameter, and a weight per parameter (L,), 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TINY = 1e-30
Distance = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], Tensor]


def _products(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Inner product of each pair, (L,)."""
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)])


def l2rel(found: Sequence[Tensor], wanted: Sequence[Tensor], weights: Tensor) -> Tensor:
    """||g - g*||^2 / ||g*||^2 over all parameters."""
    gaps = [a - b for a, b in zip(found, wanted, strict=True)]
    return (weights * _products(gaps, gaps)).sum() / (
        (weights * _products(wanted, wanted)).sum() + TINY
    )


def cosine(found: Sequence[Tensor], wanted: Sequence[Tensor], weights: Tensor) -> Tensor:
    """1 - cos(g, g*), all parameters as one vector; blind to the scale of the upload."""
    dot = (weights * _products(found, wanted)).sum()
    one = (weights * _products(found, found)).sum()
    two = (weights * _products(wanted, wanted)).sum()
    return 1 - dot / ((one + TINY).sqrt() * (two + TINY).sqrt())


def layer_cosine(found: Sequence[Tensor], wanted: Sequence[Tensor], weights: Tensor) -> Tensor:
    """1 - cos of each parameter, weighted by the norm of the uploaded one."""
    one, two = _products(found, found), _products(wanted, wanted)
    gaps = 1 - _products(found, wanted) / ((one + TINY).sqrt() * (two + TINY).sqrt())
    norms = weights * two.sqrt()
    return (norms * gaps).sum() / (norms.sum() + TINY)


def cosine_l2(found: Sequence[Tensor], wanted: Sequence[Tensor], weights: Tensor) -> Tensor:
    """The cosine plus a hundredth of the squared distance, so that magnitude counts a little."""
    return cosine(found, wanted, weights) + 0.01 * l2rel(found, wanted, weights)


DISTANCES: dict[str, Distance] = {
    "cosine": cosine,
    "layer-cosine": layer_cosine,
    "cosine+l2": cosine_l2,
    "l2rel": l2rel,
}
SCALE_FREE = frozenset({"cosine", "layer-cosine"})
"""Distances that may compare an update with a gradient."""


def layer_weights(wanted: Sequence[Tensor], keep: int | None) -> Tensor:
    """1 for the `keep` parameters of largest uploaded norm (none: all), else 0; shape (L,)."""
    norms = torch.stack([value.norm() for value in wanted])
    if keep is None or keep >= len(norms):
        return torch.ones_like(norms)
    out = torch.zeros_like(norms)
    out[norms.argsort(descending=True, stable=True)[:keep]] = 1
    return out
