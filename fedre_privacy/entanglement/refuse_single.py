"""Refusal: no upload that holds one class only."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.channels import NOTHING, Channel
from fedre_privacy.core.config import knob, part

from .base import Draw, Entanglement, Mix, by_class, schemes


@schemes.register("refuse-single")
@dataclass(frozen=True, kw_only=True)
class RefuseSingle(Entanglement):
    """Upload nothing in a round in which too few classes would be mixed.

    An upload of one class is that class's prototype: entanglement protects nothing there. Classes
    are counted in what the base mixes, so what another scheme left out does not count, and bases
    that send one class by design (rsp, rsr) never upload. The server sees who is silent.

    Reference: FedRE (CVPR 2026), Section 3: with one class, what is mixed is its prototype.
    Deviations: FedRE uploads it.
    """

    when_to_use = "clients with one class, which a mixture cannot hide"

    min_classes: int = knob(2, help="classes that an upload needs", ge=1)
    base: Entanglement = part(schemes, "rap", help="scheme that mixes them")

    def mix(self, draw: Draw) -> Mix | None:
        mix = self.base.mix(draw)
        if mix is None or int((by_class(mix.weights, draw) > 0).sum()) < self.min_classes:
            return None
        return mix

    def channel(self) -> Channel:
        return NOTHING
