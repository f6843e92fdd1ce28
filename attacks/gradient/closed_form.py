"""Inputs of a linear layer with bias, read off its gradient without any optimisation.

For z = W x + b, every sample adds dL/dz_i x to row i of the weight gradient and dL/dz_i to entry i
of the bias gradient; so a row that only one sample drives is that sample, up to a known factor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LEAST = 1e-6
"""Share of the largest bias gradient below which a row is left out."""


def single_input(weight: Tensor, bias: Tensor) -> Tensor:
    """The input (d,) of a single sample, by least squares over all rows; exact.

    Args:
        weight, bias: gradients (m, d) and (m,).
    """
    return (bias.double() @ weight.double() / bias.double().square().sum()).to(weight.dtype)


def agreeing_inputs(weight: Tensor, bias: Tensor, agree: float) -> tuple[Tensor, Tensor]:
    """Inputs that several rows agree on.

    Two rows driven by one sample have equal ratios dW_i / db_i; ratios of different mixtures of
    samples differ. Each group of equal ratios is one input.

    Args:
        weight, bias: gradients (m, d) and (m,).
        agree: largest relative distance of ratios that count as equal.

    Returns:
        inputs (k, d), those with most rows first, and rows that agree (k,) int64; rows that stand
        alone come last, those driven hardest first.
    """
    kept = (bias.abs() > LEAST * bias.abs().max()).nonzero().flatten()
    if not len(kept):
        return weight.new_zeros(0, weight.shape[1]), torch.zeros(0, dtype=torch.int64)
    strength, rows = bias[kept].double(), weight[kept].double()
    ratios = rows / strength[:, None]
    norms = ratios.square().sum(1)
    gaps = (norms[:, None] + norms[None] - 2 * ratios @ ratios.T).clamp(min=0)
    near = gaps <= agree**2 * torch.minimum(norms[:, None], norms[None])
    near.fill_diagonal_(True)
    group = torch.full((len(kept),), -1)
    leaders = near.sum(1) + strength.abs() / (2 * strength.abs().max())
    for number, row in enumerate(leaders.argsort(descending=True).tolist()):
        if group[row] < 0:
            group[near[row] & (group < 0)] = number
    names, group = group.unique(return_inverse=True)
    zeros = strength.new_zeros(len(names))
    sizes = torch.bincount(group, minlength=len(names))
    pull = zeros.index_add(0, group, strength.square())
    inputs = (
        rows.new_zeros(len(names), rows.shape[1]).index_add(0, group, rows * strength[:, None])
        / pull[:, None]
    )
    order = (sizes + pull / (2 * pull.max())).argsort(descending=True)
    return inputs[order].to(weight.dtype), sizes[order]


def pixel_by_pixel(
    inner: Callable[[Tensor], Tensor], shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor] | None:
    """Scale and shift (d,) by which pixels become what a layer sees, or None where they are mixed.

    Args:
        inner: images (n, C, H, W) in [0, 1] to the layer's input.
        shape: (C, H, W).
    """
    pixels = shape[0] * shape[1] * shape[2]
    probe = torch.linspace(0, 1, pixels).reshape(1, *shape)
    with torch.no_grad():
        images = (torch.zeros(1, *shape), torch.ones(1, *shape), probe)
        dark, bright, mixed = (inner(image).detach().reshape(-1) for image in images)
    if len(dark) != pixels:
        return None
    scale = bright - dark
    straight = torch.allclose(mixed, dark + scale * probe.reshape(-1), atol=1e-4)
    return (scale, dark) if straight and bool((scale != 0).all()) else None
