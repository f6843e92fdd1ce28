"""The schemes of FedRE (CVPR 2026, Table 6) and the laws of their weights (Table 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.config import knob

from .base import Entanglement, schemes, spread_over_classes

DISTRIBUTIONS = ("uniform", "gaussian", "laplace")
POSITIVE = ("abs", "softmax", "clamp", "redraw")


def positive_weights(
    count: int, rng: torch.Generator, *, distribution: str, positive: str
) -> Tensor:
    """Draw `count` weights and make them positive, not yet normalised.

    Uniform(0, 1), N(0, 1) or Laplace(0, 1). The paper does not say what happens to negative
    draws, which would put the label encoding outside the simplex; `positive` chooses: absolute
    value, softmax, clamp at 1e-6, or redraw until positive. A total that is almost zero falls
    back to equal weights.

    Returns:
        (count,) float64.
    """
    weights = _draw(count, rng, distribution)
    if positive == "abs":
        weights = weights.abs()
    elif positive == "softmax":
        weights = weights.softmax(0)
    elif positive == "clamp":
        weights = weights.clamp(min=1e-6)
    else:
        while (negative := weights <= 0).any():
            weights = torch.where(negative, _draw(count, rng, distribution), weights)
    return weights if weights.sum() >= 1e-12 else torch.ones_like(weights)


def _draw(count: int, rng: torch.Generator, distribution: str) -> Tensor:
    if distribution == "gaussian":
        return torch.randn(count, generator=rng, dtype=torch.float64)
    uniform = torch.rand(count, generator=rng, dtype=torch.float64)
    if distribution == "uniform":
        return uniform
    centred = uniform - 0.5
    return -centred.sign() * torch.log1p(-2 * centred.abs())


@schemes.register("rap")
@dataclass(frozen=True, kw_only=True)
class RAP(Entanglement):
    """Mix the client's prototypes with one random weight per class.

    One weight is drawn for every class id, present or not, so that weights re-used over rounds
    stay with their class when a class is missing for a round.

    Reference: FedRE (CVPR 2026), Section 3 and Table 6.
    Deviations: the printed formula normalises over samples; the index must run over classes.
    """

    weights: str = knob("uniform", help="distribution of the weights", choices=DISTRIBUTIONS)
    positive: str = knob("abs", help="what happens to negative draws", choices=POSITIVE)

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        drawn = positive_weights(
            num_classes, rng, distribution=self.weights, positive=self.positive
        )
        return spread_over_classes(drawn, labels)


@schemes.register("rar")
@dataclass(frozen=True, kw_only=True)
class RAR(Entanglement):
    """Mix all representations with one random weight per sample.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    weights: str = knob("uniform", help="distribution of the weights", choices=DISTRIBUTIONS)
    positive: str = knob("abs", help="what happens to negative draws", choices=POSITIVE)

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        drawn = positive_weights(
            len(labels), rng, distribution=self.weights, positive=self.positive
        )
        return drawn / drawn.sum()


@schemes.register("rsp")
@dataclass(frozen=True, kw_only=True)
class RSP(Entanglement):
    """Send the prototype of one class drawn uniformly from the client's classes.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        present = labels.unique()
        chosen = present[torch.randint(len(present), (1,), generator=rng)]
        class_weights = torch.zeros(num_classes, dtype=torch.float64)
        class_weights[chosen] = 1.0
        return spread_over_classes(class_weights, labels)


@schemes.register("rsr")
@dataclass(frozen=True, kw_only=True)
class RSR(Entanglement):
    """Send the representation of one sample drawn uniformly: no mixing at all.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        weights = torch.zeros(len(labels), dtype=torch.float64)
        weights[torch.randint(len(labels), (1,), generator=rng)] = 1.0
        return weights


@schemes.register("vap")
@dataclass(frozen=True, kw_only=True)
class VAP(Entanglement):
    """Average the client's prototypes with equal weights.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        return spread_over_classes(torch.ones(num_classes, dtype=torch.float64), labels)


@schemes.register("var")
@dataclass(frozen=True, kw_only=True)
class VAR(Entanglement):
    """Average all representations; the label encoding is the client's class histogram.

    Reference: FedRE (CVPR 2026), Table 6.
    """

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        return torch.full((len(labels),), 1.0 / len(labels), dtype=torch.float64)
