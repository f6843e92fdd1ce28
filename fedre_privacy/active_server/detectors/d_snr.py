"""Batches in which one sample has most of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Detector, Receipt, detectors

MOST = 1e6
"""The largest score: all other samples have no gradient at all."""


@detectors.register("d-snr")
@dataclass(frozen=True, kw_only=True)
class DSnr(Detector):
    """Largest share of one sample: |gradient of one| / sum of |gradients of the others|.

    It is the largest over the weights of the model and over the samples of the first batch, before
    the client trains. NaN for batches of one and where no weight has a gradient.

    Sees:      fished heads, under which one sample dominates; imprint layers with a few samples
               above most thresholds
    Misses:    what treats all samples alike; prototypes, which are no weights
    Reference: Garov et al., Hiding in plain sight: disguising data stealing attacks in federated
               learning, ICLR 2024 (disaggregation signal-to-noise ratio).
    """

    when_to_use = (
        "before training on a batch: notices that one sample has nearly all of the gradient"
    )

    def score(self, receipt: Receipt) -> float:
        found = [norms for norms in receipt.gradients().values() if len(norms) > 1 and norms.any()]
        shares = [
            float((norms / (norms.sum() - norms).clamp(min=norms.max() / MOST)).max())
            for norms in found
        ]
        return max(shares, default=float("nan"))
