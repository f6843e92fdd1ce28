"""Prototypes that no client can have made."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import Prototypes

from .base import Detector, Receipt, detectors, of_kind


@detectors.register("target-sanity")
@dataclass(frozen=True, kw_only=True)
class TargetSanity(Detector):
    """Mean distance of broadcast prototypes to the client's own newest ones of the same classes.

    It is taken over their mean norm. NaN before its first upload, and without common classes.

    Sees:      prototypes that are lifted or pushed far
    Misses:    echoes, whose distance is 0, and classes that are left out
    Reference: none known.
    """

    def score(self, receipt: Receipt) -> float:
        sent = of_kind(receipt.message, Prototypes)
        own = of_kind(receipt.uploaded[-1], Prototypes) if receipt.uploaded else None
        if not isinstance(sent, Prototypes) or not isinstance(own, Prototypes):
            return float("nan")
        mine = dict(zip(own.labels.tolist(), own.means.double(), strict=True))
        pairs = zip(sent.labels.tolist(), sent.means.double(), strict=True)
        far = [float((row - mine[c]).norm() / mine[c].norm()) for c, row in pairs if c in mine]
        return sum(far) / len(far) if far else float("nan")
