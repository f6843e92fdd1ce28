"""Quantised label encodings: what a client says about its mix, on a coarse grid."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from fedre_privacy.core.channels import Channel, Rounding
from fedre_privacy.core.config import knob, part

from .base import Draw, Entanglement, Mix, schemes


@schemes.register("quantised")
@dataclass(frozen=True, kw_only=True)
class QuantisedEncoding(Entanglement):
    """Round the label encoding to multiples of 1/levels that still sum to one.

    Only what is said is rounded: the representation is mixed with the exact weights, so the
    server knows them up to 1/levels a class and solves for the prototypes with errors in its
    matrix, and classes of little weight vanish from the encoding. Mixing with the rounded weights
    too would make the encoding exact again and protect nothing. The recorded mixture holds the
    weights that were used.

    Channel:   rounding of the encoding
    Reference: largest-remainder rounding (Hamilton's method of apportionment).
    """

    when_to_use = "to hide the exact weights of a mixture; best together with `slow`"
    exact = False

    levels: int = knob(16, help="steps between 0 and 1", ge=1)
    base: Entanglement = part(schemes, "rap", help="scheme whose encoding is rounded")

    def mix(self, draw: Draw) -> Mix | None:
        mix = self.base.mix(draw)
        if mix is None:
            return None
        return dataclasses.replace(mix, encoding=largest_remainder(mix.encoding, self.levels))

    def channel(self) -> Channel:
        return Channel(encoding=(Rounding(self.levels),))


def largest_remainder(shares: Tensor, levels: int) -> Tensor:
    """Round shares that sum to 1 to multiples of 1/levels that sum to 1 (both (C,) float64).

    All are rounded down, then those that lost most get one step back; on a tie, the first. No
    share moves by 1/levels or more and none leaves 0.
    """
    steps = shares * levels
    low = steps.floor()
    missing = levels - int(low.sum())
    back = (steps - low).argsort(descending=True, stable=True)[:missing]
    low[back] += 1
    return low / levels
