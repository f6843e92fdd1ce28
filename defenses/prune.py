"""Sending the largest changes only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.channels import Channel, Masking
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, Sending, defenses
from .values import TRAINED, update_of, with_update


@defenses.register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Defense):
    """Keep the largest changes of an update by magnitude over all tensors, and send no other.

    Parameters that are not kept are sent as they were received, gradients as 0. An attack must
    match the kept numbers only, or the defence looks better than it is.

    Acts on:    parameters (against those received) and gradients
    Channel:    a mask of the update
    Guarantee:  none
    Reference:  Zhu, Liu, Han, Deep leakage from gradients, NeurIPS 2019, Section 5.
    Deviations: the rest is lost, not added to the next round's update. Tensors stay dense, so the
                recorded traffic does not shrink.
    """

    when_to_use = "sparse updates, for traffic and as a heuristic against gradient inversion"
    acts_on = TRAINED

    keep: float = knob(0.1, help="share of the changes kept", gt=0, le=1)

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        update = update_of(artifact, sending)
        flat = torch.cat([value.flatten() for value in update.values()])
        count = max(1, round(self.keep * len(flat)))
        kept = torch.zeros(len(flat), dtype=torch.bool)
        kept[flat.abs().topk(count).indices] = True
        masks = kept.split([value.numel() for value in update.values()])
        pruned = {
            name: torch.where(mask.reshape(value.shape), value, 0.0)
            for (name, value), mask in zip(update.items(), masks, strict=True)
        }
        return with_update(artifact, pruned, sending)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(updates=(Masking(),))
