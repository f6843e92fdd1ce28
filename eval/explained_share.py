"""How much of what was uploaded an answer makes up, beside what answers without the upload do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .measures import EXPLAINED, TABLE
from .metrics.base import Metric

LEAST = 1e-6
"""Share over the floor's that is more than rounding."""

CAUSES = (
    "batch-norm mode, normalisation, kind of upload (weights, a difference, a gradient, a sum), "
    "other weights, order of rows; or too few steps"
)
"""Why answers do not explain an upload of which nobody knows how it was made, likeliest first."""
WEAKNESSES = (
    "an attack too weak for such an extractor (a deep one, few public images, too few steps), or a "
    "module other than the client's in the attacker's hands"
)
"""The same of an upload that the true images are known to make."""


@dataclass(frozen=True, kw_only=True)
class ExplainedShare(Metric):
    """Share of a target that an answer, put in place of the true images, would have sent.

    It needs no true image: answers are passed through what the attacker holds (the extractor, the
    client's loss) and compared with the upload.

    Args:
        share: from answers (N, C, H, W) to shares (N,), see `Attack.explained`.
        compared: what is compared, in words.
    """

    name: ClassVar[str] = EXPLAINED
    title: ClassVar[str] = "upload explained"
    shown: ClassVar[str] = TABLE

    share: Callable[[Tensor], Tensor]
    compared: str

    def definition(self, image_shape: tuple[int, int, int]) -> str:
        return (
            f"share of what was uploaded that the answer makes again: {self.compared}. 1 is all of "
            "it; no more than the floor's answers is nothing"
        )

    def __call__(self, recovered: Tensor, original: Tensor) -> Tensor:
        """Shares (N,) float64 in [0, 1] of answers (N, C, H, W); NaN where one is not finite."""
        told = self.share(recovered.detach().cpu()).double().clamp(0, 1)
        return told.masked_fill(~recovered.isfinite().flatten(1).all(1).cpu(), torch.nan)
