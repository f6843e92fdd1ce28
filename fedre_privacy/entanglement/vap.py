"""VAP: the mean of the prototypes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Entanglement, schemes, spread_over_classes


@schemes.register("vap")
@dataclass(frozen=True, kw_only=True)
class VAP(Entanglement):
    """Average the client's prototypes with equal weights.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    when_to_use = "equal weights that never change: nothing to solve, and the classes are open"

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        return spread_over_classes(torch.ones(num_classes, dtype=torch.float64), labels)
