"""Representations under noise, trained to lie close to few centres of each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedre_privacy.core.channels import Channel, RandomChange, TrainingTerm
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, defenses
from .local_pass import ExtractorPass, LocalBatch, ModelShapes
from .values import COLLECTED

MEMORY = 0.9
"""Share of a centre that stays when a batch moves it."""


class ClassCentres(nn.Module):
    """Some centres of each class, which move towards the samples nearest to them.

    Attributes:
        centres: (classes, k, d). known: (classes, k), whether a sample has been there.
    """

    centres: Tensor
    known: Tensor

    def __init__(self, classes: int, count: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.zeros(classes, count, dim))
        self.register_buffer("known", torch.zeros(classes, count, dtype=torch.bool))

    @torch.no_grad()
    def forward(self, reps: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest centre of each sample's class: its number (n,), and where it is (n, d)."""
        count = self.known.shape[1]
        number = torch.zeros_like(labels)
        for label in labels.unique():
            own = labels == label
            fresh = (~self.known[label]).nonzero().squeeze(1)[: int(own.sum())]
            self.centres[label, fresh] = reps[own][: len(fresh)]
            self.known[label, fresh] = True
            apart = torch.cdist(reps[own], self.centres[label])
            number[own] = label * count + apart.masked_fill(~self.known[label], torch.inf).argmin(1)
        return number, self.centres.flatten(0, 1)[number]

    @torch.no_grad()
    def move(self, reps: Tensor, number: Tensor) -> None:
        """Let each centre follow the mean of its samples."""
        flat = self.centres.flatten(0, 1)
        for one in number.unique():
            flat[one] = MEMORY * flat[one] + (1 - MEMORY) * reps[number == one].mean(0)


@defenses.register("cem")
@dataclass(frozen=True, kw_only=True)
class ConditionalEntropy(Defense):
    """Add noise to representations, and train with a bound on what they then tell of images.

    Each class has k centres. A batch's samples at a centre are taken as normal, with variances v of
    their coordinates about it and the weight pi that they have in the batch. The information in
    nats is then at most sum pi (-log pi + sum log(1 + v / sigma^2) / 2), of which lambda times the
    share of one coordinate is added to the loss. A smaller information is a larger conditional
    entropy of the image, which bounds every reconstruction's mean square error from below.

    Acts on:    local training, and each representation before it is sent or averaged
    Channel:    a random change, and a training term
    Guarantee:  none: the bound is for mixtures of normal distributions
    Reference:  Xia et al., Theoretical insights in model inversion robustness and conditional
                entropy maximization for collaborative inference systems, CVPR 2025, the loss L_C.
    Deviations: centres follow the batches by a moving average, where the paper clusters all
                representations after each epoch; no threshold under which a variance is free; no
                second defence beside it, which another `--defense` gives.
    """

    when_to_use = "noise of a fixed size that training makes worth more"
    acts_on = COLLECTED

    strength: float = knob(1.0, help="lambda, the weight of the bound on information", ge=0)
    noise: float = knob(0.1, help="sigma, standard deviation of the noise", gt=0)
    centres: int = knob(2, help="k, centres of each class", ge=1)

    def own_modules(self, shapes: ModelShapes) -> Mapping[str, nn.Module]:
        return {"centres": ClassCentres(shapes.classes, self.centres, shapes.dim)}

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        return reps + self.noise * seen.normal(reps)

    def training_term(self, batch: LocalBatch) -> Tensor:
        reps, centres = batch.unchanged, batch.modules["centres"]
        number, centre = centres(reps.detach(), batch.labels)
        weights, variances = mixture_of(reps, centre, number)
        if isinstance(centres, ClassCentres):
            centres.move(reps.detach(), number)
        return self.strength * information_bound(weights, variances, self.noise) / reps.shape[1]

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(RandomChange(),), training=(TrainingTerm(),))


def mixture_of(reps: Tensor, centre: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (m,) and variances (m, d) of the m components that samples belong to.

    Args:
        reps: (n, d). centre: (n, d), the one of each sample's component. number: (n,) int64.
    """
    _, place = number.unique(return_inverse=True)
    member = nn.functional.one_hot(place).to(reps).T
    sizes = member.sum(1)
    return sizes / len(reps), member @ (reps - centre).square() / sizes[:, None]


def information_bound(weights: Tensor, variances: Tensor, noise: float) -> Tensor:
    """Most information in nats that z + e gives on z, a mixture of normal distributions.

    e is normal noise. The entropy of a mixture is at most that of its weights and the mean of its
    components' entropies.

    Args:
        weights: (m,), above 0, sum 1. variances: (m, d), of each component's coordinates.
        noise: standard deviation of e, above 0.
    """
    inside = (variances / noise**2).log1p().sum(1) / 2
    return (weights * (inside - weights.log())).sum()
