"""Heads that jump."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import HeadState

from .base import Detector, Receipt, detectors, of_kind


@detectors.register("head-change")
@dataclass(frozen=True, kw_only=True)
class HeadChange(Detector):
    """|W_t - W_before| / |W_before| of the heads' rows, centred: minus their mean row.

    Sees:      amplified heads, heads that are reset
    Misses:    the first round, in which there is nothing before; slow changes
    Reference: none known.
    """

    when_to_use = "shared heads: notices one that jumped since the round before"

    def score(self, receipt: Receipt) -> float:
        heads = [of_kind(message, HeadState) for message in (*receipt.earlier, receipt.message)]
        rows = [h.params["weight"].double() for h in heads[-2:] if isinstance(h, HeadState)]
        if len(rows) < 2:
            return float("nan")
        before, now = (weight - weight.mean(0) for weight in rows)
        return float((now - before).norm() / before.norm().clamp(min=1e-12))
