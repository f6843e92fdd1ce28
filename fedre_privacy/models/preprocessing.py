"""What becomes of images inside a model whose backbone was trained elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .split import Normalise

COLOURS = 3
"""Channels that published backbones take."""


class FitImages(nn.Module):
    """Images in [0, 1] as a published backbone takes them: in colour, of its size, normalised.

    Grey images are repeated in three channels. Height and width are brought to `size` by two matrix
    products, which are bilinear interpolation (antialiased where it shrinks) and, unlike it,
    deterministic on a GPU too. Nothing is trained and nothing is saved.

    Args:
        image_shape: (C, H, W), C is 1 or 3. size: height and width that the backbone takes.
        mean, std: one value for all channels, or one per channel.

    Shape: (n, C, H, W) to (n, 3, size, size).
    """

    rows: Tensor
    columns: Tensor

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        size: int,
        mean: float | Sequence[float],
        std: float | Sequence[float],
    ) -> None:
        super().__init__()
        _, height, width = image_shape
        self.same = (height, width) == (size, size)
        self.register_buffer("rows", interpolation(height, size), persistent=False)
        self.register_buffer("columns", interpolation(width, size), persistent=False)
        self.normalise = Normalise(mean, std)

    def forward(self, images: Tensor) -> Tensor:
        if not self.same:
            images = self.rows @ images @ self.columns.T
        if images.shape[1] != COLOURS:
            images = images.expand(-1, COLOURS, -1, -1)
        normalised: Tensor = self.normalise(images)
        return normalised


def interpolation(given: int, wanted: int) -> Tensor:
    """Matrix (wanted, given) that interpolates a row of pixels linearly, antialiased."""
    rows = torch.eye(given)[None, None]
    made = F.interpolate(
        rows, size=(wanted, given), mode="bilinear", align_corners=False, antialias=True
    )
    return made[0, 0]
