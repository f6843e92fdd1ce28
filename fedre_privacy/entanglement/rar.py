"""RAR: random weights over samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.config import knob

from .base import DISTRIBUTIONS, POSITIVE, Entanglement, positive_weights, schemes


@schemes.register("rar")
@dataclass(frozen=True, kw_only=True)
class RAR(Entanglement):
    """Mix all representations with one random weight per sample.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    when_to_use = "single samples weighted at random: FedRE's variant on representations"

    weights: str = knob("uniform", help="distribution of the weights", choices=DISTRIBUTIONS)
    positive: str = knob("abs", help="what happens to negative draws", choices=POSITIVE)

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        drawn = positive_weights(
            len(labels), rng, distribution=self.weights, positive=self.positive
        )
        return drawn / drawn.sum()
