"""What a learnt defence is shown: the shapes of a client's model, one pass, one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelShapes:
    """Sizes that a defence makes its own modules for.

    Args:
        image: (C, H, W). dim: length of a representation. classes: outputs of the head.
    """

    image: tuple[int, int, int]
    dim: int
    classes: int


@dataclass(frozen=True, eq=False)
class ExtractorPass:
    """One pass of a client's extractor, in local training, behind an upload or in a prediction.

    Args:
        images: (n, C, H, W) in [0, 1].
        extract: images to representations (n, d) as the extractor makes them, unchanged; with
            gradients where they are switched on.
        modules: the defence's own, by name; on the device of the images.
        rng: a CPU stream for what is drawn; None: nothing may be drawn, and what is returned is
            the change on average or without its noise. So clients predict, and attackers match.
        training: whether it is a pass of local training.
    """

    images: Tensor
    extract: Callable[[Tensor], Tensor]
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    rng: torch.Generator | None = None
    training: bool = False

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the form of a tensor; zeros where nothing may be drawn."""
        if self.rng is None:
            return torch.zeros_like(like)
        return torch.randn(like.shape, generator=self.rng).to(like)


@dataclass(frozen=True, eq=False)
class LocalBatch:
    """One batch of local training, after the protocol's own loss of it was computed.

    Args:
        images: (b, C, H, W) in [0, 1], as they entered the loss. labels: (b,) int64.
        reps: (b, d) as the head was given them, after every defence's change; they carry
            gradients to the extractor but in `Defense.opponent_loss`.
        unchanged: (b, d) as the extractor made them, with the same gradients.
        extract: images to unchanged representations (n, d). head: representations to logits.
        modules: the defence's own, by name.
        rng: a CPU stream of (the client's secret, round) for what is drawn.
        round, rounds: of the run, from 1.
    """

    images: Tensor
    labels: Tensor
    reps: Tensor
    unchanged: Tensor
    extract: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    modules: Mapping[str, nn.Module]
    rng: torch.Generator
    round: int = 1
    rounds: int = 1
