"""Class means of representations."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.types import Emission, Mixture


def class_means(
    reps: Tensor, labels: Tensor, num_classes: int, *, on_host: Tensor | None = None
) -> Emission:
    """Mean representation of each class present, classes ascending.

    Args:
        reps: (n, d).
        labels: (n,) int64, where the representations are.
        on_host: the same on the CPU, where they are known, so that the host need not wait.
    """
    known = labels.cpu() if on_host is None else on_host
    counts = torch.bincount(known, minlength=num_classes)
    # a matrix product: index_add_ is not deterministic on CUDA
    sums = torch.nn.functional.one_hot(labels, num_classes).to(reps).T @ reps
    present = counts.nonzero().squeeze(1)
    there, sizes = (held.to(labels.device) for held in (present, counts[present, None]))
    row_of_class = torch.full((num_classes,), -1, dtype=torch.int64)
    row_of_class[present] = torch.arange(len(present))
    weights = 1.0 / counts[known].float()
    mixture = Mixture(row_of_class[known], torch.arange(len(known)), weights, len(present))
    return Emission(Prototypes(sums[there] / sizes, there), mixture)
