"""Prototypes moved by one large vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.config import knob

from .base import Message, Steering, View, steerings


@steerings.register("lift")
@dataclass(frozen=True, kw_only=True)
class Lift(Steering):
    """Add one large positive number to every coordinate of every prototype.

    It pulls units out of the range in which a ReLU answers 0, where they tell nothing.

    Alters:     Prototypes
    Seen as:    prototypes far from one's own
    Reference:  none known.
    """

    alters = (Prototypes,)

    height: float = knob(
        3.0, help="what is added, in mean absolute values of the honest prototypes", gt=0
    )

    def steer(
        self, view: View, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            Prototypes(self._lifted(artifact.means), artifact.labels)
            if isinstance(artifact, Prototypes)
            else artifact
            for artifact in honest
        )

    def _lifted(self, means: Tensor) -> Tensor:
        return means + self.height * means.abs().mean() if means.numel() else means
