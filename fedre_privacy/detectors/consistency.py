"""Messages that differ between clients."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Detector, Receipt, detectors


@detectors.register("consistency")
@dataclass(frozen=True, kw_only=True)
class Consistency(Detector):
    """1 where another client of the round was sent something else, 0 where all agree.

    Clients compare digests among themselves. Protocols that send clients who missed a round
    another message differ without any malice.

    Sees:      every message of its own for one client
    Misses:    steering that is equal for all
    Reference: gossip and transparency logs, a common remedy.
    """

    def score(self, receipt: Receipt) -> float:
        if not receipt.message:
            return float("nan")
        return float(bool(receipt.others - {receipt.digest}))
