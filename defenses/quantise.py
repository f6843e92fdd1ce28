"""Sending few bits per number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.channels import Channel, RandomRounding
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, Sending, defenses
from .values import ALL, update_of, with_update


@defenses.register("quantise")
@dataclass(frozen=True, kw_only=True)
class Quantise(Defense):
    """Round every number at random to one of 2^bits levels between -max and max of its tensor.

    The rounding is right on average: a number goes to one of its two neighbours, the nearer one
    more often. Of parameters the change is rounded.

    Acts on:    everything with values
    Channel:    random rounding to 2^bits levels
    Guarantee:  none
    Reference:  Alistarh et al., QSGD, NeurIPS 2017 (here with the largest magnitude as scale).
    Deviations: numbers stay 32-bit tensors on disk, so the recorded traffic does not shrink.
    """

    when_to_use = "fewer bits a number, for traffic and as a heuristic; no guarantee"
    acts_on = ALL

    bits: int = knob(8, help="bits per number", ge=1, le=16)

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        update = update_of(artifact, sending)
        rounded = {name: self._round(value, rng) for name, value in update.items()}
        return with_update(artifact, rounded, sending)

    def channel(self, facts: FederationFacts) -> Channel:
        rounding = (RandomRounding(2**self.bits),)
        return Channel(rows=rounding, updates=rounding)

    def _round(self, values: Tensor, rng: torch.Generator) -> Tensor:
        drawn = torch.rand(values.shape, generator=rng, dtype=torch.float64)
        scale = values.double().abs().amax() if values.numel() else torch.zeros(())
        if not float(scale):
            return values
        steps = 2**self.bits - 1
        position = (values.double() / scale + 1) / 2 * steps
        levels = (position + drawn).floor().clamp(0, steps)
        out: Tensor = (levels / steps * 2 - 1) * scale
        return out.to(values.dtype)
