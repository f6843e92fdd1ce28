"""Broadcasts without prototypes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import Prototypes

from .base import Message, Steering, View, steerings


@steerings.register("withhold")
@dataclass(frozen=True, kw_only=True)
class Withhold(Steering):
    """Leave all classes out, so that nothing pulls a client's representations together.

    The detail within a class, which the honest pull shrinks, survives.

    Alters:     Prototypes
    Seen as:    a broadcast without classes
    Reference:  none known.
    """

    alters = (Prototypes,)

    def steer(
        self, view: View, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            artifact.take(torch.zeros(0, dtype=torch.int64))
            if isinstance(artifact, Prototypes)
            else artifact
            for artifact in honest
        )
