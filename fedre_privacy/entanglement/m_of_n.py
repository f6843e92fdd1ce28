"""m of n: a few of the client's prototypes in each round."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.channels import NOTHING, Channel
from fedre_privacy.core.config import knob, part

from .base import Draw, Entanglement, Mix, on_some, schemes


@schemes.register("m-of-n")
@dataclass(frozen=True, kw_only=True)
class MOfN(Entanglement):
    """Mix only m of the client's classes, drawn anew every round; all of them if it has fewer.

    One upload shows m of its classes; over rounds all of them show, and the weights are further
    apart than those over all classes, so prototypes are easier to work out, not harder.

    Reference: FedRE (CVPR 2026), Table 6: between its RSP (m = 1) and its RAP (m = n).
    Deviations: nothing between the ends is published.
    """

    when_to_use = "to see what lies between one class a round (rsp) and all of them (rap)"

    m: int = knob(3, help="classes in each upload", ge=1)
    base: Entanglement = part(schemes, "rap", help="scheme that mixes them")

    def mix(self, draw: Draw) -> Mix | None:
        # One draw for every class id, so that a class missing for a round moves no other.
        rank = torch.rand(draw.num_classes, generator=draw.rng("m-of-n"), dtype=torch.float64)
        held = draw.labels.unique()
        chosen = held[rank[held].argsort(stable=True)[: self.m]]
        return on_some(self.base, draw, torch.isin(draw.labels, chosen))

    def channel(self) -> Channel:
        return NOTHING
