"""Prototypes that are missing."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import Prototypes

from .base import Detector, Receipt, detectors, of_kind


@detectors.register("absent-classes")
@dataclass(frozen=True, kw_only=True)
class AbsentClasses(Detector):
    """Share of the classes that the client has uploaded and that the broadcast leaves out.

    Sees:      classes that are withheld
    Misses:    everything else
    Reference: none known.
    """

    def score(self, receipt: Receipt) -> float:
        sent = of_kind(receipt.message, Prototypes)
        uploads = [of_kind(message, Prototypes) for message in receipt.uploaded]
        own = {c for a in uploads if isinstance(a, Prototypes) for c in a.labels.tolist()}
        if not isinstance(sent, Prototypes) or not own:
            return float("nan")
        return len(own - set(sent.labels.tolist())) / len(own)
