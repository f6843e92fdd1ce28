"""Additive noise that is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedre_privacy.core.channels import Channel, LearntChange, TrainingTerm
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, defenses
from .local_pass import ExtractorPass, LocalBatch, ModelShapes
from .values import COLLECTED


class NoiseTensors(nn.Module):
    """Several noise vectors (k, d), at first draws from a Laplace distribution."""

    def __init__(self, count: int, dim: int, scale: float) -> None:
        super().__init__()
        drawn = torch.distributions.Laplace(0.0, scale).sample((count, dim))
        self.tensors = nn.Parameter(drawn)

    def forward(self) -> Tensor:
        return self.tensors


@defenses.register("shredder")
@dataclass(frozen=True, kw_only=True)
class Shredder(Defense):
    """Add one of k learnt vectors to each representation, drawn anew, and reward their size.

    The vectors are trained on the loss minus lambda times the sum of their absolute values. They
    grow where the task bears it. Predictions are made with their mean.

    Acts on:    local training, and each representation before it is sent or averaged
    Channel:    a random learnt change, and a training term
    Guarantee:  none: who holds the vectors has k candidates for each representation
    Reference:  Mireshghallah et al., Shredder: learning noise distributions to protect inference
                privacy, ASPLOS 2020: the loss with -lambda sum |n|, and one of several learnt
                tensors for each inference.
    Deviations: the extractor and the head go on training, which the paper keeps as they are; the k
                vectors are learnt together; lambda is not lowered on the way.
    """

    when_to_use = "noise as large as the task bears, from a set that is learnt"
    acts_on = COLLECTED

    strength: float = knob(0.01, help="lambda, the reward of a vector's absolute sum", ge=0)
    tensors: int = knob(8, help="k, learnt vectors of each client", ge=1)
    scale: float = knob(0.1, help="scale of the Laplace distribution they start from", gt=0)
    step: float = knob(10.0, help="step size of the vectors over that of the client", gt=0)

    def own_modules(self, shapes: ModelShapes) -> Mapping[str, nn.Module]:
        return {"noise": NoiseTensors(self.tensors, shapes.dim, self.scale)}

    def own_lr(self, lr: float) -> float:
        return self.step * lr

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        noise: Tensor = seen.modules["noise"]()
        if seen.rng is None:
            return reps + noise.mean(0)
        chosen = torch.randint(len(noise), (len(reps),), generator=seen.rng)
        return reps + noise[chosen.to(noise.device)]

    def training_term(self, batch: LocalBatch) -> Tensor:
        return -self.strength * mean_absolute_sum(batch.modules["noise"]())

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(LearntChange(random=True),), training=(TrainingTerm(),))


def mean_absolute_sum(tensors: Tensor) -> Tensor:
    """Sum of absolute values of each vector (k, d), and its mean over vectors."""
    return tensors.abs().sum(1).mean()
