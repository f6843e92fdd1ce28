"""Logistic regression of a few numbers on few rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTY = 1.0
"""On the squared weights of standardised features, half of it added to the loss."""
STEPS = 50
LEAST_SCALE = 0.01
"""Smallest unit of a feature. They are logarithms, of which a hundredth tells nothing."""


@dataclass(frozen=True, eq=False)
class Logistic:
    """P(right) = sigmoid(weight . z + bias), z the standardised features (F,).

    Features are cut to the range that they were fitted on: nothing is known beyond it.
    """

    centre: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Probabilities (n,) of rows (n, F)."""
        inside = features.double().maximum(self.low).minimum(self.high)
        return ((inside - self.centre) / self.scale @ self.weight + self.bias).sigmoid()


def fit(features: Tensor, right: Tensor, strange: Tensor | None = None) -> Logistic:
    """Fit by Newton's method.

    Half a right and half a wrong row at the mean of all are added, so that an answer exists where
    all rows are right, or none. Strange rows, which are wrong, count as one row together: they
    tell in which direction wrong answers lie, and not how many there are.

    Args:
        features: (n, F) finite. right: (n,) from 0 to 1. strange: (n,) bool; none: none is.
    """
    features, right = features.double(), right.double()
    if strange is None:
        strange = torch.zeros(len(right), dtype=torch.bool)
    right = right.masked_fill(strange, 0)
    centre = features[~strange].mean(0)
    scale = features[~strange].std(0, correction=0).clamp(min=LEAST_SCALE)
    size = features.shape[1]
    rows = torch.cat([(features - centre) / scale, features.new_zeros(2, size)])
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    wanted = torch.cat([right, right.new_tensor([0.0, 1.0])])
    weight = torch.where(strange, 1 / max(1, int(strange.sum())), 1.0).double()
    counted = torch.cat([weight, right.new_tensor([0.5, 0.5])])
    ridge = rows.new_tensor([PENALTY] * size + [0.0]).diag()
    found = rows.new_zeros(size + 1)
    for _ in range(STEPS):
        said = (rows @ found).sigmoid()
        slope = rows.T @ (counted * (said - wanted)) + ridge @ found
        bend = (rows * (counted * said * (1 - said))[:, None]).T @ rows + ridge
        bend.diagonal().add_(1e-9)
        step = torch.linalg.solve(bend, slope)
        found = found - step / max(1.0, float(step.abs().max()) / 2)
        if float(step.abs().max()) < 1e-9:
            break
    return Logistic(centre, scale, features.amin(0), features.amax(0), found[:-1], found[-1])
