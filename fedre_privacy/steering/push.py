"""Prototypes pushed apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.config import knob

from .base import Message, Steering, View, steerings


@steerings.register("push")
@dataclass(frozen=True, kw_only=True)
class Push(Steering):
    """Move each prototype away from the mean of all: s = p + beta (p - mean p).

    It asks clients for representations that differ more between classes.

    Alters:     Prototypes
    Seen as:    prototypes far from one's own, some with negative entries
    Reference:  none known.
    """

    alters = (Prototypes,)

    beta: float = knob(1.0, help="share of the distance to the mean that is added", gt=0)

    def steer(
        self, view: View, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            Prototypes(self._pushed(artifact.means), artifact.labels)
            if isinstance(artifact, Prototypes)
            else artifact
            for artifact in honest
        )

    def _pushed(self, means: Tensor) -> Tensor:
        return means + self.beta * (means - means.mean(0)) if means.numel() else means
