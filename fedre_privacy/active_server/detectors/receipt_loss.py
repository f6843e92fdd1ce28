"""Messages that make a client worse."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from .base import Detector, Receipt, detectors


@detectors.register("receipt-loss")
@dataclass(frozen=True, kw_only=True)
class ReceiptLoss(Detector):
    """Loss on the client's own samples under the message, in standard deviations of its history.

    Before there are three losses to compare with, the loss itself.

    Sees:      resets, and heads that name the wrong classes
    Misses:    a null head in the first round: an honest first head is random and no better
    Reference: a common sanity check; none for this setting.
    """

    when_to_use = "any model or head: notices resets and wrong classes by the client's own loss"

    def score(self, receipt: Receipt) -> float:
        if not receipt.losses or not receipt.message:
            return float("nan")
        *before, now = receipt.losses
        if len(before) < 3:
            return now
        spread = max(statistics.stdev(before), 1e-3)
        return (now - statistics.mean(before)) / spread
