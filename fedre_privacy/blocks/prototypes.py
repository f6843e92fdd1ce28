"""Class means of representations."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.core.types import Emission, Mixture, Prototypes


def class_means(reps: Tensor, labels: Tensor, num_classes: int) -> Emission:
    """Mean representation of each class present, classes ascending.

    Args:
        reps: (n, d).
        labels: (n,) int64.
    """
    counts = torch.bincount(labels, minlength=num_classes)
    sums = reps.new_zeros((num_classes, reps.shape[1])).index_add_(0, labels, reps)
    present = counts.nonzero().squeeze(1)
    means = sums[present] / counts[present, None]
    row_of_class = torch.full((num_classes,), -1, dtype=torch.int64, device=labels.device)
    row_of_class[present] = torch.arange(len(present), device=labels.device)
    mixture = Mixture(
        row_of_class[labels].cpu(),
        torch.arange(len(labels)),
        (1.0 / counts[labels].float()).cpu(),
        num_rows=len(present),
    )
    return Emission(Prototypes(means, present), mixture)
