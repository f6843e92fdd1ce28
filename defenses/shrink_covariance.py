"""Shrinking covariances of classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import Artifact, ClassStatistics
from fedre_privacy.core.channels import Channel, Shrinkage
from fedre_privacy.core.class_sums import shrunk
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, Sending, defenses


@defenses.register("shrink-covariance")
@dataclass(frozen=True, kw_only=True)
class ShrinkCovariance(Defense):
    """Send (1 - a) C + a T in place of each covariance C, with a and T that everybody knows.

    T is the mean variance times the identity, or C's diagonal. Neither moves T, so whoever knows a
    below 1 has C again: the defence is one against servers that do not look. A covariance of one
    value stays, and so does a diagonal one towards its diagonal.

    Acts on:    covariances of classes, of their mixtures' components, and of all classes
    Channel:    shrinkage by a
    Guarantee:  none
    Reference:  Ledoit, Wolf, A well-conditioned estimator for large-dimensional covariance
                matrices, Journal of Multivariate Analysis 2004 (the identity as aim).
    """

    when_to_use = "steadier covariances of few images; a heuristic that knowing attackers undo"
    acts_on = (ClassStatistics,)

    share: float = knob(0.5, help="a, of the simpler covariance", gt=0, le=1)
    towards: str = knob(
        "identity",
        help="T: the mean variance times the identity, or the covariance's diagonal",
        choices=("identity", "diagonal"),
    )

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        if not isinstance(artifact, ClassStatistics):
            return artifact
        return shrunk(artifact, self.share, self.towards)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(statistics=(Shrinkage(self.share, self.towards),))
