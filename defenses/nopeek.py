"""Representations that depend less on images, by their distance correlation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.channels import Channel, TrainingTerm
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, defenses
from .local_pass import LocalBatch
from .values import COLLECTED


@defenses.register("nopeek")
@dataclass(frozen=True, kw_only=True)
class NoPeek(Defense):
    """Train with alpha dCor(images, representations) added to the loss of each batch.

    dCor is the distance correlation of a batch's images and its representations: 0 where they are
    independent, 1 where one is the other but for scale, shift and rotation. The extractor learns to
    keep what classes need and to lose which image it was.

    Acts on:    local training; representations, prototypes and mixes are sent as they are
    Channel:    a training term
    Guarantee:  none
    Reference:  Vepakomma et al., NoPeek: information leakage reduction to share activations in
                distributed deep learning, ICDM workshops 2020, the loss of Section III; Szekely,
                Rizzo, Bakirov, Annals of Statistics 2007, Definition 3 (dCor of a sample).
    Deviations: the paper weighs both terms; here the task's weight is 1.
    """

    when_to_use = "a term in the loss alone: nothing else of a client is changed"
    acts_on = COLLECTED

    strength: float = knob(1.0, help="alpha, the weight of the distance correlation", ge=0)

    def training_term(self, batch: LocalBatch) -> Tensor | None:
        if len(batch.images) < 2:
            return None
        return self.strength * distance_correlation(batch.images, batch.reps)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(training=(TrainingTerm(),))


def distance_correlation(left: Tensor, right: Tensor) -> Tensor:
    """Distance correlation of n pairs, in [0, 1]; its smallest value is 1e-6 to have a gradient.

    Args:
        left: (n, ...). right: (n, ...); both are flattened to rows.
    """
    one, other = _centred_distances(left), _centred_distances(right)
    covariance = (one * other).mean()
    variances = one.square().mean() * other.square().mean()
    return (covariance / variances.clamp(min=1e-24).sqrt()).clamp(min=1e-12).sqrt()


def _centred_distances(rows: Tensor) -> Tensor:
    """Euclidean distances (n, n) less the means of rows and columns, plus that of all."""
    flat = rows.flatten(1)
    apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")
    return apart - apart.mean(0) - apart.mean(1, keepdim=True) + apart.mean()
