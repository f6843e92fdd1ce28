"""Mean squared error on the [0, 1] scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..measures import TABLE
from .base import Metric, metrics


@metrics.register("mse")
@dataclass(frozen=True, kw_only=True)
class Mse(Metric):
    """Mean over C, H and W of (recovered - original)^2, images in [0, 1]; lower leaks more."""

    when_to_use = "plain pixel error, in the scale of images in [0, 1]"
    title: ClassVar[str] = "MSE"
    higher_leaks: ClassVar[bool] = False
    digits: ClassVar[int] = 4
    shown: ClassVar[str] = TABLE

    def score(self, recovered: Tensor, original: Tensor) -> Tensor:
        return squared_error(recovered, original)

    def definition(self, image_shape: tuple[int, int, int]) -> str:
        return "mean squared error per image, values in [0, 1], not rounded to 8 bits"


def squared_error(recovered: Tensor, original: Tensor) -> Tensor:
    """Mean squared error of each pair (n, C, H, W): (n,) float64."""
    return (recovered.double() - original.double()).square().flatten(1).mean(dim=1)
