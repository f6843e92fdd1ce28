"""Mean outputs of a client by class, as numbers that tell of images linearly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from .client_messages import are_shares

LEAST = math.exp(-30)
"""Probabilities below it count as it."""


@dataclass(frozen=True)
class ClassOutputs:
    """How outputs are compared: shares of classes by their logarithms, others as they are.

    Args:
        shares: whether what is sent are shares of classes.
        least: what shares below it count as.
    """

    shares: bool
    least: float

    @classmethod
    def of(cls, sent: Tensor) -> ClassOutputs:
        """Of all that a client uploaded (m, C).

        Zeros come from rounding, numbers below them from noise: they count as half the least
        positive share, or as much as noise takes away.
        """
        above, least = sent[sent > 0], LEAST
        if bool((sent <= 0).any()) and len(above):
            least = max(least, float(above.min()) / 2, -float(sent.min()))
        return cls(are_shares(sent), least)

    def made(self, logits: Tensor) -> Tensor:
        """What a client with these logits (n, C) sends of each image."""
        return logits.softmax(1) if self.shares else logits

    def features(self, values: Tensor) -> Tensor:
        """What is compared, for values as they are sent (n, ...)."""
        return values.clamp(min=self.least).log() if self.shares else values
