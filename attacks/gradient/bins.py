"""Inputs of a layer whose rows are a few directions with thresholds, read bin by bin.

Unit j of a direction u sums over the samples with u a above its threshold, so neighbouring units
differ by the samples between their thresholds, and (dW_j - dW_k) / (db_j - db_k) is the input of
one that is alone there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

PARALLEL = 0.9999
"""Cosine from which rows are one direction."""
LEAST = 1e-3
"""Share of the largest difference of bias gradients below which a bin is empty."""
SLACK = 8
"""Bins that an input may lie beside the one it was read from: local steps move thresholds."""


@dataclass(frozen=True, eq=False)
class Read:
    """What bins hold.

    Shape: inputs (k, n), surest first; certified (k,) bool: two directions agree on it.
    """

    inputs: Tensor
    certified: Tensor


def directions_of(layer: nn.Linear) -> list[Tensor]:
    """Numbers of the rows of each direction that several rows share; none: no imprint."""
    rows = nn.functional.normalize(layer.weight.detach().double(), dim=1)
    left, found = torch.arange(len(rows)), []
    while len(left):
        alike = (rows[left] @ rows[left[0]]) > PARALLEL
        if int(alike.sum()) > 1:
            found.append(left[alike])
        left = left[~alike]
    return found


def read_bins(layer: nn.Linear, weight: Tensor, bias: Tensor, agree: float) -> Read:
    """Read every bin of every direction.

    Args:
        layer: as clients received it; it has a bias.
        weight, bias: gradients (m, n) and (m,), up to one factor.
        agree: relative distance up to which two directions give the same input.
    """
    parts = [_along(layer, weight, bias, rows) for rows in directions_of(layer)]
    inputs = torch.cat([found for found, _ in parts])
    drive = torch.cat([strength for _, strength in parts])
    owner = torch.cat([torch.full((len(s),), i) for i, (_, s) in enumerate(parts)])
    if not len(inputs):
        return Read(inputs.to(weight.dtype), torch.zeros(0, dtype=torch.bool))
    apart = torch.cdist(inputs, inputs) / inputs.norm(dim=1).clamp(min=1e-30)
    apart[owner[:, None] == owner[None]] = torch.inf
    gap, partner = apart.min(1)
    mutual = partner[partner] == torch.arange(len(partner))
    sure = mutual & (gap < agree)
    kept = ~sure | (torch.arange(len(gap)) < partner)  # one of each pair
    usual = drive[sure].median() if bool(sure.any()) else drive.median()
    odd = (drive / usual).log().abs()  # two samples in a bin drive it twice as hard, or hardly
    order = torch.where(sure, gap - 1e6, odd)[kept].argsort()
    return Read(inputs[kept][order].to(weight.dtype), sure[kept][order])


def _along(layer: nn.Linear, weight: Tensor, bias: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (k, n) of the bins of one direction that hold something, and what drives them (k,)."""
    own = layer.weight.detach()[rows].double()
    size = own.norm(dim=1)
    threshold = -layer.bias.detach()[rows].double() / size
    order = threshold.argsort()
    rows, threshold = rows[order], threshold[order]
    direction = own[0] / size[0]
    weights, drives = (_steps(t[rows].double()) for t in (weight, bias))
    held = (drives.abs() > LEAST * drives.abs().max()).nonzero().flatten()
    inputs = weights[held] / drives[held, None]
    lies = torch.searchsorted(threshold, inputs @ direction) - 1
    near = ((lies - held).abs() <= SLACK) & inputs.isfinite().all(1)
    return inputs[near], drives[held][near].abs()


def _steps(values: Tensor) -> Tensor:
    """Each entry less the next one, the last less nothing."""
    return values - torch.cat([values[1:], torch.zeros_like(values[:1])])
