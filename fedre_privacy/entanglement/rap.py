"""RAP: random weights over prototypes, FedRE's default."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.config import knob

from .base import (
    DISTRIBUTIONS,
    POSITIVE,
    Entanglement,
    positive_weights,
    schemes,
    spread_over_classes,
)


@schemes.register("rap")
@dataclass(frozen=True, kw_only=True)
class RAP(Entanglement):
    """Mix the client's prototypes with one random weight per class.

    One weight is drawn for every class id, present or not, so that weights re-used over rounds
    stay with their class when a class is missing for a round.

    Reference: FedRE (CVPR 2026), Section 3 and Table 6.
    Deviations: the printed formula normalises over samples; the index must run over classes.
    """

    when_to_use = "FedRE as published: the default"

    weights: str = knob("uniform", help="distribution of the weights", choices=DISTRIBUTIONS)
    positive: str = knob("abs", help="what happens to negative draws", choices=POSITIVE)

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        drawn = positive_weights(
            num_classes, rng, distribution=self.weights, positive=self.positive
        )
        return spread_over_classes(drawn, labels)
