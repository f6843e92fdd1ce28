"""Saying less about labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import Artifact, EntangledRep
from fedre_privacy.core.channels import Channel, Smoothing
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, Sending, defenses


@defenses.register("label-smoothing")
@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(Defense):
    """Mix the label encoding with the uniform one: (1 - alpha) y + alpha / C.

    No class is named by being absent any more, but whoever knows alpha subtracts it again; only
    together with decoys (scheme decoy) or rounding (scheme quantised) does it hide the support.

    Acts on:    the label encoding of entangled representations
    Channel:    smoothing of the encoding
    Guarantee:  none
    Reference:  Szegedy et al., Rethinking the inception architecture, CVPR 2016, Section 7.
    """

    when_to_use = "with `decoy` or `quantised`, to hide which classes are absent from a mixture"
    acts_on = (EntangledRep,)

    alpha: float = knob(0.1, help="share of the uniform encoding", ge=0, le=1)

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        if not isinstance(artifact, EntangledRep):
            return artifact
        plain = artifact.encoding
        return EntangledRep(artifact.rep, (1 - self.alpha) * plain + self.alpha / plain.numel())

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(encoding=(Smoothing(self.alpha),))
