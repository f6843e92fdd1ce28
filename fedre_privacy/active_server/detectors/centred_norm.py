"""Heads whose rows are equal."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import HeadState

from .base import Detector, Receipt, detectors, of_kind


@detectors.register("centred-norm")
@dataclass(frozen=True, kw_only=True)
class CentredNorm(Detector):
    """Minus |W - mean row| / |W| of a head W (C, d): 0 where all rows are equal.

    A random head of C classes has sqrt(1 - 1 / C).

    Sees:      null heads of any norm, from the first round on
    Misses:    a null head that keeps most of the honest one, and everything else
    Reference: none known.
    """

    when_to_use = "shared heads: notices rows that are equal, from the first round on"

    def score(self, receipt: Receipt) -> float:
        head = of_kind(receipt.message, HeadState)
        if not isinstance(head, HeadState):
            return float("nan")
        weight = head.params["weight"].double()
        return -float((weight - weight.mean(0)).norm() / weight.norm().clamp(min=1e-12))
