"""Heads made larger or smaller."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.core.config import knob

from .base import Message, ServerView, Steering, steerings


@steerings.register("scale-head")
@dataclass(frozen=True, kw_only=True)
class ScaleHead(Steering):
    """Send the honest head times a number.

    A larger head is surer of its classes, so that samples which it gets right pull less.

    Alters:     HeadState
    Seen as:    a norm that jumps
    Reference:  none known.
    """

    when_to_use = "a steering of heads that is easy to see, beside which others are judged"
    alters = (HeadState,)

    factor: float = knob(10.0, help="what every parameter is multiplied by")

    def steer(
        self, view: ServerView, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            HeadState({name: self.factor * value for name, value in artifact.params.items()})
            if isinstance(artifact, HeadState)
            else artifact
            for artifact in honest
        )
