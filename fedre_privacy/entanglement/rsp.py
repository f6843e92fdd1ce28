"""RSP: one random prototype."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Entanglement, schemes, spread_over_classes


@schemes.register("rsp")
@dataclass(frozen=True, kw_only=True)
class RSP(Entanglement):
    """Send the prototype of one class drawn uniformly from the client's classes.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    when_to_use = "the variant of FedRE that sends one prototype a round; nothing is mixed"

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        present = labels.unique()
        chosen = present[torch.randint(len(present), (1,), generator=rng)]
        class_weights = torch.zeros(num_classes, dtype=torch.float64)
        class_weights[chosen] = 1.0
        return spread_over_classes(class_weights, labels)
