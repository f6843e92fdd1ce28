"""What a metric is: one number for each pair of images, both in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.registry import Registry

from ..measures import COMPARISON

metrics: Registry[Metric] = Registry("metric", "fedre_privacy.eval.metrics")

DEFAULT_METRICS = ("psnr", "ssim", "mse255")
"""Metrics that need no file beyond the installed packages."""

_SLACK = 1e-4
"""Values this far outside [0, 1] are rounding, not another scale; they are clamped."""


@metrics.base
@dataclass(frozen=True, kw_only=True)
class Metric:
    """Base of all metrics. Authors set the class attributes and write `score`.

    Class attributes:
        title: as printed at the head of a row.
        unit: of the value, empty where it has none.
        higher_leaks: True where a higher value means that more of the original was recovered.
        digits: decimals to print.
        shown: how far it is shown beyond tables, one of `measures.PLACES`.
    """

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another metric: a clause of at most 100 characters."""
    title: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    higher_leaks: ClassVar[bool] = True
    digits: ClassVar[int] = 3
    shown: ClassVar[str] = COMPARISON

    def score(self, recovered: Tensor, original: Tensor) -> Tensor:
        """Score finite pairs (n, C, H, W), values in [0, 1], n >= 1: (n,)."""
        raise TypeError(f"{type(self).__name__} does not define score")

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raise now what scoring images (C, H, W) would raise later: size, absent files."""

    def definition(self, image_shape: tuple[int, int, int]) -> str:
        """State the convention for images (C, H, W), for records and captions."""
        return self.title

    def __call__(self, recovered: Tensor, original: Tensor) -> Tensor:
        """Score each recovered image against its original.

        Args:
            recovered: (N, C, H, W) in [0, 1]; a row with any non-finite value diverged.
            original: (N, C, H, W) in [0, 1], finite.

        Returns:
            (N,) float64 on the CPU, in `unit`; NaN for each row that diverged.

        Raises:
            IncompatibleError: shapes differ, values lie outside [0, 1] (the observed range is
                named), or the images are too small for the metric.
            MissingExtraError: the metric needs an optional package or file.
        """
        if recovered.dim() != 4 or recovered.shape != original.shape:
            raise IncompatibleError(
                f"Metric '{self.name}' got recovered images {tuple(recovered.shape)} and originals "
                f"{tuple(original.shape)}; it needs two equal shapes (N, C, H, W)."
            )
        channels, height, width = recovered.shape[1:]
        self.check((channels, height, width))
        recovered, original = recovered.detach().cpu(), original.detach().cpu()
        finite = recovered.isfinite().flatten(1).all(dim=1)
        require_unit_range("recovered images", recovered[finite])
        require_unit_range("originals", original)
        scores = torch.full((len(recovered),), float("nan"), dtype=torch.float64)
        if finite.any():
            values = self.score(recovered[finite].clamp(0, 1), original[finite].clamp(0, 1))
            scores[finite] = values.double()
        return scores


def require_unit_range(what: str, images: Tensor) -> None:
    """Refuse images whose values are not in [0, 1].

    Raises:
        IncompatibleError: names the observed range and its likely cause.
    """
    if not images.numel():
        return
    low, high = images.min().item(), images.max().item()
    if low >= -_SLACK and high <= 1 + _SLACK:
        return
    if not (low == low and high == high):
        likely = "some values are NaN"
    elif high > 2:
        likely = "they look like 0 to 255: divide by 255"
    elif low >= -1 - _SLACK and high <= 1 + _SLACK:
        likely = "they look like [-1, 1]: add 1 and halve"
    else:
        likely = "they look standardised per channel: undo (x - mean) / std"
    raise IncompatibleError(
        f"The {what} range from {low:.3g} to {high:.3g}; metrics need values in [0, 1] ({likely})."
    )
