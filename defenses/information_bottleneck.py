"""Representations that are draws from a normal distribution, with a price on what they tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedre_privacy.core.channels import Channel, RandomChange, TrainingTerm
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, defenses
from .local_pass import ExtractorPass, LocalBatch, ModelShapes
from .values import COLLECTED

OFFSET = 5.0
"""Taken off before the softplus, so that the first standard deviations are 0.007."""


@defenses.register("information-bottleneck")
@dataclass(frozen=True, kw_only=True)
class InformationBottleneck(Defense):
    """Send draws from N(mu(x), sigma(x)^2) and train with beta KL(N(mu, sigma^2) || N(0, 1)).

    mu is what the extractor makes; a linear layer on it, which is trained too, gives sigma for each
    coordinate. The mean of KL over images bounds from above the information that representations
    hold of images, in nats. Predictions are made from mu.

    Acts on:    local training, and each representation before it is sent or averaged
    Channel:    a random change, and a training term
    Guarantee:  none; the bound holds on average over images, and noise is drawn anew in each round
    Reference:  Alemi et al., Deep variational information bottleneck, ICLR 2017, equations 16 and
                17, and the offset of 5 of its Section 4.
    Deviations: sigma is computed from mu and not from a layer before it.
    """

    when_to_use = "noise that each coordinate learns for itself, with a price in nats"
    acts_on = COLLECTED

    strength: float = knob(1e-3, help="beta, the price of a nat", ge=0)

    def own_modules(self, shapes: ModelShapes) -> Mapping[str, nn.Module]:
        return {"spread": nn.Linear(shapes.dim, shapes.dim)}

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        return reps + _deviations(reps, seen.modules) * seen.normal(reps)

    def training_term(self, batch: LocalBatch) -> Tensor:
        mean = batch.unchanged
        return self.strength * normal_divergence(mean, _deviations(mean, batch.modules)).mean()

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(RandomChange(),), training=(TrainingTerm(),))


def normal_divergence(mean: Tensor, deviation: Tensor) -> Tensor:
    """KL(N(mean, diag(deviation^2)) || N(0, I)) of each row (n, d) in nats: (n,), 0 or more."""
    variance = deviation.square()
    return (variance + mean.square() - 1 - variance.log()).sum(1) / 2


def _deviations(mean: Tensor, modules: Mapping[str, nn.Module]) -> Tensor:
    return nn.functional.softplus(modules["spread"](mean) - OFFSET).clamp(min=1e-6)
