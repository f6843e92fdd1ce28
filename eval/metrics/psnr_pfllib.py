"""The PSNR of a public library, kept to read tables that were made with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.rng import stream

from ..measures import TABLE
from .base import Metric, metrics
from .mse import squared_error
from .psnr import psnr_from_mse

SCALE = 3.0
"""The library divides the squared error by the number of channels, whatever it is averaged over."""


@metrics.register("psnr_pfllib")
@dataclass(frozen=True, kw_only=True)
class PsnrPfllib(Metric):
    """10 log10(3 / MSE) between an answer in [0, 1] and an original in [-1, 1]; for old tables.

    PFLlib compares its candidate image, a sigmoid and so in [0, 1], with the image as its loader
    gives it, in [-1, 1], and divides the error by 3. An image x of ours is the candidate 2 x - 1
    there, cut off at 0: everything darker than mid-grey is out of reach, and even the original
    itself gets a finite score. Compare values only with those of `published_floors` on the same
    images; never with PSNR.

    Reference: PFLlib (JMLR 2025), its DLG utility; the range of FedRAL's Table 5.
    """

    when_to_use = "to compare with tables made by PFLlib and no others"
    title: ClassVar[str] = "PSNR (PFLlib)"
    unit: ClassVar[str] = "dB"
    higher_leaks: ClassVar[bool] = True
    digits: ClassVar[int] = 2
    shown: ClassVar[str] = TABLE

    def score(self, recovered: Tensor, original: Tensor) -> Tensor:
        return _decibels(candidate(recovered), original)

    def definition(self, image_shape: tuple[int, int, int]) -> str:
        return (
            "10 log10(3 / MSE) per image between the answer as a candidate in [0, 1] and the "
            "original in [-1, 1]; not a PSNR of images, and not comparable with one"
        )


def candidate(images: Tensor) -> Tensor:
    """What an image in [0, 1] is as a candidate of that attack: 2 x - 1, cut off at 0."""
    return (2 * images - 1).clamp(0, 1)


def published_floors(originals: Tensor, *, seed: int = 0) -> dict[str, float]:
    """Mean `psnr_pfllib` (dB) of candidates that know nothing, and of the best there can be.

    Args:
        originals: (n, C, H, W) in [0, 1].
        seed: of the untrained candidates.

    Returns:
        "untrained": the sigmoid of normal noise, where that attack begins; "half": 0.5 everywhere;
        "zero": 0 everywhere, mid-grey and about the best constant; "original": the image itself.
    """
    noise = torch.randn(originals.shape, generator=stream(seed, "psnr_pfllib"))
    candidates = {
        "untrained": noise.sigmoid(),
        "half": torch.full_like(originals, 0.5),
        "zero": torch.zeros_like(originals),
        "original": candidate(originals),
    }
    return {name: float(_decibels(c, originals).mean()) for name, c in candidates.items()}


def _decibels(candidates: Tensor, originals: Tensor) -> Tensor:
    return psnr_from_mse(squared_error(candidates, 2 * originals - 1) / SCALE)
