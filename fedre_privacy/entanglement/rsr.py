"""RSR: one random sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Entanglement, schemes


@schemes.register("rsr")
@dataclass(frozen=True, kw_only=True)
class RSR(Entanglement):
    """Send the representation of one sample drawn uniformly: no mixing at all.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    when_to_use = "the variant of FedRE that sends one representation: an upper end of leakage"

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        weights = torch.zeros(len(labels), dtype=torch.float64)
        weights[torch.randint(len(labels), (1,), generator=rng)] = 1.0
        return weights
