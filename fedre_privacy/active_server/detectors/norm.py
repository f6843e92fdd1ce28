"""Messages of an unusual size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .base import Detector, Message, Receipt, detectors


@detectors.register("norm")
@dataclass(frozen=True, kw_only=True)
class Norm(Detector):
    """How far the norm of the message's numbers is from what it was: |log (norm / the one before)|.

    In the first round, where there is none before, the norm itself. Six digits count: below them
    float32 decides.

    Sees:      heads and prototypes that are made larger or smaller
    Misses:    any change of the same norm, such as equal rows
    Reference: none known.
    """

    when_to_use = "any message: the cheapest check, blind to changes of equal norm"

    def score(self, receipt: Receipt) -> float:
        before = [norm for message in receipt.earlier if (norm := _norm(message)) > 0]
        now = _norm(receipt.message)
        if not 0 < now < math.inf:
            return float("nan")
        return abs(math.log(now / before[-1])) if before else now


def _norm(message: Message) -> float:
    """Norm of all floating numbers of a message, to six digits."""
    numbers = [t for a in message for t in a.tensors().values() if t.is_floating_point()]
    return float(f"{sum(float(t.double().square().sum()) for t in numbers) ** 0.5:.6g}")
