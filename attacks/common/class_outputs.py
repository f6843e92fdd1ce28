"""Mean outputs of a client by class, as numbers that tell of images linearly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import ClassLogits, Prototypes
from fedre_privacy.core.types import Observation

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


class SideBySide(nn.Module):
    """Outputs of several models side by side, (n, T * C)."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([model(images) for model in self.models], 1)


def rounds_side_by_side(
    observation: Observation, client: int, tables: Sequence[tuple[int, ClassLogits]]
) -> tuple[Prototypes, SideBySide]:
    """Mean outputs of classes over rounds, as prototypes of one long output, and what made them.

    Classes that were not uploaded in each of the rounds are left out.
    """
    last = [nn.Softmax(1)] if are_shares(torch.cat([sent.outputs for _, sent in tables])) else []
    models = [
        nn.Sequential(observation.extractors[client, r], observation.heads[client, r], *last)
        for r, _ in tables
    ]
    labels = sorted(set.intersection(*(set(sent.labels.tolist()) for _, sent in tables)))
    at = torch.tensor(labels, dtype=torch.int64)
    rows = [sent.outputs[(at[:, None] == sent.labels).int().argmax(1)] for _, sent in tables]
    return Prototypes(torch.cat(rows, 1).float(), at), SideBySide(models)
