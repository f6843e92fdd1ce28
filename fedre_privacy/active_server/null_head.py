"""Heads that say nothing: rows that are all equal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.core.config import knob

from .base import Message, ServerView, Steering, steerings


@steerings.register("null-head")
@dataclass(frozen=True, kw_only=True)
class NullHead(Steering):
    """Send a head whose rows are equal, so that the first local step pulls on no representation.

    Adding one vector to every row of a head changes no softmax, loss or gradient. Equal rows are
    therefore the zero head with whatever norm one likes: here that of the honest head, which a test
    of norms cannot tell from it. A share of the honest rows' differences may be kept.

    Alters:     HeadState: rows of the weight and of the bias
    Seen as:    a centred norm |W - mean row| / |W| near `keep` times the honest one
    Reference:  none known; follows from the shift invariance of the softmax.
    """

    when_to_use = "shared heads: class prototypes read off the first local step"
    alters = (HeadState,)

    keep: float = knob(0.0, help="share of the honest head's differences between rows", ge=0, le=1)
    norm: str = knob(
        "honest",
        help="norm of the head: that of the honest one, or as small as `keep` makes it",
        choices=("honest", "zero"),
    )

    def steer(
        self, view: ServerView, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            HeadState({name: self._flat(value) for name, value in artifact.params.items()})
            if isinstance(artifact, HeadState)
            else artifact
            for artifact in honest
        )

    def _flat(self, rows: Tensor) -> Tensor:
        """Rows (C, ...) of which `keep` of the centred part is left, and a mean row."""
        if rows.dim() == 0:
            return rows
        wide = rows.double().flatten(1) if rows.dim() > 1 else rows.double()[:, None]
        mean = wide.mean(0, keepdim=True)
        kept = self.keep * (wide - mean)
        if self.norm == "honest":  # what the centred part loses goes into the mean row
            left = (wide.square().sum() - kept.square().sum()).clamp(min=0) / len(wide)
            towards = mean if bool(mean.any()) else torch.ones_like(mean)
            kept = kept + towards / towards.norm() * left.sqrt()
        return kept.reshape(rows.shape).to(rows.dtype)
