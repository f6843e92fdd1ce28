"""A matrix that turns every representation into nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.config import knob

from .base import Message, ServerView, Steering, steerings


@steerings.register("null-matrix")
@dataclass(frozen=True, kw_only=True)
class NullMatrix(Steering):
    """Send A = -I, so that R + R A = 0 and outputs are the head's bias, whatever the image.

    The first local step then pulls on no representation and leaves the head's weights alone, and
    the change of A is the sum of each class's representations times what the bias alone gets wrong:
    what `head` reads classes off, without the noise that differing outputs put on it.

    Alters:     MatrixBlocks
    Seen as:    a norm that jumps, and a loss at receipt as if nothing had been learnt
    Reference:  none known; the null head of a shared matrix.
    """

    when_to_use = "FedRAL: class sums read off the first local step"
    alters = (MatrixBlocks,)

    keep: float = knob(0.0, help="share of the honest R + R A that stays", ge=0, le=1)

    def steer(
        self, view: ServerView, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            MatrixBlocks(self._null(artifact.blocks))
            if isinstance(artifact, MatrixBlocks)
            else artifact
            for artifact in honest
        )

    def _null(self, blocks: Tensor) -> Tensor:
        """Blocks (m, s, s) of A for which I + A is `keep` times the honest one."""
        eye = torch.eye(blocks.shape[-1], dtype=blocks.dtype)
        return self.keep * (eye + blocks) - eye
