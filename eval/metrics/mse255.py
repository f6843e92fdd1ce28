"""Mean squared error on the 0 to 255 scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..measures import TABLE
from .base import Metric, metrics
from .mse import squared_error


@metrics.register("mse255")
@dataclass(frozen=True, kw_only=True)
class Mse255(Metric):
    """255^2 times the MSE of images in [0, 1], as FedRE (CVPR 2026) prints it; lower leaks more."""

    when_to_use = "to compare with FedRE's printed MSE and no other"
    title: ClassVar[str] = "MSE, 0-255"
    higher_leaks: ClassVar[bool] = False
    digits: ClassVar[int] = 0
    shown: ClassVar[str] = TABLE

    def score(self, recovered: Tensor, original: Tensor) -> Tensor:
        return squared_error(recovered, original) * 255**2

    def definition(self, image_shape: tuple[int, int, int]) -> str:
        return "mean squared error per image on the 0 to 255 scale, not rounded to 8 bits"
