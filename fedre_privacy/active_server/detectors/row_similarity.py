"""Layers whose rows are alike."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import functional as F

from .base import Detector, Receipt, detectors


@detectors.register("row-similarity")
@dataclass(frozen=True, kw_only=True)
class RowSimilarity(Detector):
    """Largest share of nearly parallel pairs of rows (cosine above 0.99) in any matrix sent.

    Sees:      imprint layers, whose rows are one direction, and null heads that keep little
    Misses:    rows that are disguised
    Reference: the layers of Fowl et al., Robbing the Fed, ICLR 2022.
    """

    when_to_use = "models with linear layers: notices imprinted layers and null heads"

    def score(self, receipt: Receipt) -> float:
        shares = []
        for artifact in receipt.message:
            for name, tensor in artifact.tensors().items():
                if "weight" in name and tensor.dim() > 1 and len(tensor) > 1:
                    rows = F.normalize(tensor.double().flatten(1), dim=1)
                    alike = (rows @ rows.T > 0.99).sum() - len(rows)
                    shares.append(float(alike) / (len(rows) * (len(rows) - 1)))
        return max(shares, default=float("nan"))
