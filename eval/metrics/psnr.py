"""Peak signal-to-noise ratio of each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..measures import FRONTIER
from .base import Metric, metrics
from .mse import squared_error

MSE_FLOOR = 1e-10
"""A perfect image scores 100 dB instead of infinity, so that a mean stays finite."""


@metrics.register("psnr")
@dataclass(frozen=True, kw_only=True)
class Psnr(Metric):
    """10 log10(1 / MSE) of each image in [0, 1], at most 100 dB; higher leaks more.

    The mean over images of this value is never below the PSNR of their mean MSE (Jensen);
    `fedre_privacy.eval.evaluate` reports both.
    """

    when_to_use = "the field's usual score; read it beside its floor, since blur is rewarded"
    title: ClassVar[str] = "PSNR"
    unit: ClassVar[str] = "dB"
    higher_leaks: ClassVar[bool] = True
    digits: ClassVar[int] = 2
    shown: ClassVar[str] = FRONTIER

    def score(self, recovered: Tensor, original: Tensor) -> Tensor:
        return psnr_from_mse(squared_error(recovered, original))

    def definition(self, image_shape: tuple[int, int, int]) -> str:
        return "10 log10(1 / MSE) per image in [0, 1], then averaged; at most 100 dB"


def psnr_from_mse(mse: Tensor) -> Tensor:
    """Turn MSE on the [0, 1] scale into dB, capped at 100."""
    return -10 * mse.clamp_min(MSE_FLOOR).log10()
