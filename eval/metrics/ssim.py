"""Structural similarity of each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError

from ..measures import TABLE
from .base import Metric, metrics

WINDOW = 11
"""Side of the Gaussian window (px): sigma 1.5 cut at 3.5 sigma."""


@metrics.register("ssim")
@dataclass(frozen=True, kw_only=True)
class Ssim(Metric):
    """Structural similarity with an 11 px Gaussian window; higher leaks more.

    scikit-image's `structural_similarity` with gaussian_weights, sigma 1.5, population covariance,
    K = (0.01, 0.03), data range 1; the mean over positions where the window fits, then over
    channels. Other libraries' windows differ in the third decimal.

    Reference: Wang, Bovik, Sheikh and Simoncelli, IEEE Transactions on Image Processing 2004.
    """

    when_to_use = "structure rather than brightness; images of 11 pixels or more"
    title: ClassVar[str] = "SSIM"
    shown: ClassVar[str] = TABLE

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Refuse images smaller than the window.

        Raises:
            IncompatibleError: a side is under 11 px.
        """
        height, width = image_shape[1:]
        if min(height, width) < WINDOW:
            raise IncompatibleError(
                f"SSIM uses an {WINDOW} px window; the images are {height} x {width} px.",
                next_step="Leave SSIM out for such images: --metrics psnr,mse255.",
            )

    def score(self, recovered: Tensor, original: Tensor) -> Tensor:
        from skimage.metrics import structural_similarity

        # Every channel of every image is its own plane: one call instead of one per image.
        _, similarity = structural_similarity(
            recovered.double().flatten(0, 1).numpy(),
            original.double().flatten(0, 1).numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            channel_axis=0,
            full=True,
        )
        edge = WINDOW // 2
        inner = torch.from_numpy(similarity)[:, edge:-edge, edge:-edge]
        return inner.reshape(len(recovered), -1).mean(dim=1)

    def definition(self, image_shape: tuple[int, int, int]) -> str:
        return (
            "SSIM per image, 11 px Gaussian window (sigma 1.5), population covariance, "
            "mean over channels, scikit-image convention"
        )
