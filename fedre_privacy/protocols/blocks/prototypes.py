"""Class means of representations."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.types import Emission, Mixture


def class_means(reps: Tensor, labels: Tensor, num_classes: int) -> Emission:
    """Mean representation of each class present, classes ascending.

    Args:
        reps: (n, d).
        labels: (n,) int64.
    """
    counts = torch.bincount(labels, minlength=num_classes)
    # a matrix product: index_add_ is not deterministic on CUDA
    sums = torch.nn.functional.one_hot(labels, num_classes).to(reps).T @ reps
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
