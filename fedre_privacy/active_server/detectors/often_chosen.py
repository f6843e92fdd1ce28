"""Clients that are chosen too often."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .base import Detector, Receipt, detectors


@detectors.register("often-chosen")
@dataclass(frozen=True, kw_only=True)
class OftenChosen(Detector):
    """Minus log10 of the chance to be chosen at least so often by an honest draw (binomial tail).

    Sees:      isolation of a client, where the server draws few
    Misses:    anything where all clients take part
    Reference: exact binomial test.
    """

    when_to_use = "few clients a round: notices that one client is chosen too often"

    def score(self, receipt: Receipt) -> float:
        if receipt.share >= 1:
            return float("nan")
        chosen, rounds = len(receipt.earlier) + 1, receipt.round
        tail = sum(
            math.comb(rounds, n) * receipt.share**n * (1 - receipt.share) ** (rounds - n)
            for n in range(chosen, rounds + 1)
        )
        return -math.log10(max(tail, 1e-300))
