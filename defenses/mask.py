"""Sending a random part of the coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.channels import Channel, Masking
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, Sending, defenses
from .values import BOUNDED, VECTORS, update_of, values_of, with_update, with_values


@defenses.register("mask")
@dataclass(frozen=True, kw_only=True)
class Mask(Defense):
    """Set random coordinates to 0: new ones every round (dropout), or always the same (bottleneck).

    All vectors of an upload lose the same coordinates. Fixed ones are the client's own, drawn
    once; the server sees which they are, as they are 0. Of parameters the change is masked. Over
    several rounds new masks let everything through once.

    Acts on:    vectors and updates
    Channel:    a mask, with the factor of what is kept
    Guarantee:  none
    Reference:  Srivastava et al., Dropout, JMLR 2014 (the mask, here at upload only).
    """

    when_to_use = "dropout or a bottleneck on what is sent; no guarantee"
    acts_on = BOUNDED

    keep: float = knob(0.5, help="share of coordinates kept", gt=0, le=1)
    fixed: bool = knob(False, help="the same coordinates in every round")
    rescale: bool = knob(False, help="divide what is kept by its share, which keeps the mean")

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        if self.fixed:
            rng = sending.of_run(f"mask {artifact.kind}")
        if is_one_of(type(artifact), VECTORS):
            rows = values_of(artifact)
            masked = {
                name: value * self._draw_mask(value.shape[-1:], rng) for name, value in rows.items()
            }
            return with_values(artifact, masked)
        update = update_of(artifact, sending)
        masked = {name: value * self._draw_mask(value.shape, rng) for name, value in update.items()}
        return with_update(artifact, masked, sending)

    def channel(self, facts: FederationFacts) -> Channel:
        masked = (Masking(1 / self.keep if self.rescale else 1.0),)
        return Channel(rows=masked, updates=masked)

    def _draw_mask(self, shape: torch.Size, rng: torch.Generator) -> Tensor:
        count = shape.numel()
        kept = torch.zeros(count)
        chosen = torch.randperm(count, generator=rng)[: max(1, round(self.keep * count))]
        kept[chosen] = 1 / self.keep if self.rescale else 1.0
        return kept.reshape(shape)
