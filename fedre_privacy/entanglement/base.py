"""What an entanglement scheme is: weights over a client's samples, summing to one.

A scheme answers one question, which weight each training sample gets; the mixed representation
and the mixed label encoding follow from it, so a scheme is a few lines and the recorded weights
are always the used ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.registry import Registry
from fedre_privacy.core.types import Emission, EntangledRep, Mixture

schemes: Registry[Entanglement] = Registry("entanglement scheme", "fedre_privacy.entanglement")


@dataclass(frozen=True, kw_only=True)
class Entanglement:
    """Base of all schemes. Authors write `sample_weights`; a scheme is pure and seeded."""

    name: ClassVar[str] = ""

    def sample_weights(self, labels: Tensor, num_classes: int, rng: torch.Generator) -> Tensor:
        """Weight of each of a client's training samples.

        Args:
            labels: (n,) int64 on the CPU, values below num_classes.
            rng: a CPU stream keyed by (seed, client, round), or by (seed, client) when the
                protocol re-uses its weights in every round.

        Returns:
            (n,) float64, non-negative, summing to 1.
        """
        raise TypeError(f"{type(self).__name__} does not define sample_weights")

    def __call__(
        self, reps: Tensor, labels: Tensor, num_classes: int, rng: torch.Generator
    ) -> Emission:
        """Mix a client's representations (n, d) and one-hot labels with the same weights."""
        labels = labels.cpu()
        weights = self.sample_weights(labels, num_classes, rng)
        mixed = weights.to(reps) @ reps
        encoding = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, labels, weights)
        used = weights.nonzero().squeeze(1)
        mixture = Mixture(torch.zeros_like(used), used, weights[used].float(), num_rows=1)
        return Emission(EntangledRep(mixed, encoding.float()), mixture)


def class_sizes(labels: Tensor, num_classes: int) -> Tensor:
    """Samples of each class, (num_classes,) float64."""
    return torch.bincount(labels, minlength=num_classes).double()


def spread_over_classes(class_weights: Tensor, labels: Tensor) -> Tensor:
    """Turn weights over prototypes (num_classes,) into weights over samples: v_c / n_c.

    Classes that are absent get nothing and the rest is renormalised to sum 1.
    """
    sizes = class_sizes(labels, len(class_weights))
    present = torch.where(sizes > 0, class_weights.double(), 0.0)
    per_class = present / present.sum() / sizes.clamp(min=1)
    return per_class[labels]
