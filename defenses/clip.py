"""Bounding the length of what is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.channels import Channel, ClippingStep
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, Sending, defenses
from .values import BOUNDED, COLLECTED, clip_rows, clip_to_norm


@defenses.register("clip")
@dataclass(frozen=True, kw_only=True)
class Clip(Defense):
    """Shorten each vector, or the update as a whole, to a Euclidean length: r min(1, S / ||r||).

    With ``where=representation`` each sample's representation is shortened before prototypes or
    mixes are made of them, which bounds one sample's influence; with ``where=upload`` what is sent
    is. Of parameters the difference to those received is shortened.

    Acts on:    vectors (representations, prototypes, entangled, class outputs) and updates
    Channel:    a bound: of each representation, or of what is sent
    Guarantee:  none by itself; noise needs it, and has its own (see gaussian)
    Reference:  Dwork, Roth, The algorithmic foundations of differential privacy, 2014, 3.5.
    """

    when_to_use = "to bound what one upload or sample can change; the ground of calibrated noise"
    acts_on = BOUNDED

    norm: float = knob(1.0, help="largest length S", gt=0)
    where: str = knob(
        "upload",
        help="what is shortened: vectors and updates as sent, or each sample's representation "
        "before means are taken",
        choices=("upload", "representation"),
    )

    def check(self, facts: FederationFacts) -> list[str]:
        kinds = COLLECTED if self.where == "representation" else BOUNDED
        if any(is_one_of(kind, kinds) for kind in facts.kinds_with_values):
            return []
        sent = ", ".join(kind.__name__ for kind in facts.kinds_with_values) or "nothing"
        return [
            f"Defence 'clip' with where={self.where} has nothing to shorten: protocol "
            f"'{facts.protocol}' sends {sent}."
        ]

    def represent(self) -> Callable[[Tensor], Tensor] | None:
        if self.where == "upload":
            return None
        return partial(clip_rows, norm=self.norm)

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        return clip_to_norm(artifact, self.norm, sending) if self.where == "upload" else artifact

    def channel(self, facts: FederationFacts) -> Channel:
        bound = (ClippingStep(self.norm),)
        return Channel(rows=bound, updates=bound) if self.where == "upload" else Channel(each=bound)
