"""VAR: the mean of all samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Entanglement, schemes


@schemes.register("var")
@dataclass(frozen=True, kw_only=True)
class VAR(Entanglement):
    """Average all representations; the label encoding is the client's class histogram.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    when_to_use = "the plain mean of all representations: the fixed variant of `rar`"

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        return torch.full((len(labels),), 1.0 / len(labels), dtype=torch.float64)
