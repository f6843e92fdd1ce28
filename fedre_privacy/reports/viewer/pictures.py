"""Pictures of targets, many to a sheet, so that a page with thousands opens at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedre_privacy.reports.html import png

from .entries import Sheets

SMALL_COUNT, SMALL_SIDE = 4, 32
"""Targets in a thumbnail, and the longest side of each of its pictures (pixels)."""

MOST_PIXELS = 1 << 20
"""Pixels of a sheet."""


def drawable(images: Tensor) -> bool:
    """Whether a tensor holds pictures (N, C, H, W) of one or three channels."""
    return images.dim() == 4 and images.shape[1] in (1, 3) and min(images.shape) > 0


def sheets(images: Tensor, which: Tensor | None = None) -> Sheets:
    """Lay pictures out on sheets.

    Args:
        images: (N, C, H, W), in [0, 1] or uint8; values that are not finite become black.
        which: (M,) int64, the picture of each target where it is not that of its own number.
    """
    values = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    count, channels, height, width = values.shape
    each = min(max(1, MOST_PIXELS // (height * width)), count)
    across = math.ceil(math.sqrt(each))
    down = math.ceil(each / across)
    pngs = []
    for part in values.split(each):
        rows = math.ceil(len(part) / across) if count <= each else down
        sheet = torch.zeros(rows * across, channels, height, width)
        sheet[: len(part)] = part.nan_to_num(0.0)
        laid = sheet.reshape(rows, across, channels, height, width).permute(2, 0, 3, 1, 4)
        pngs.append(png(laid.reshape(channels, rows * height, across * width)))
    return Sheets(
        width, height, across, each, tuple(pngs), None if which is None else tuple(which.tolist())
    )


def thumbnail(rows: Sequence[Tensor]) -> bytes:
    """A PNG of the first targets side by side.

    Args:
        rows: pictures (N, C, H, W) in [0, 1] or uint8, one row below the other; of one size.
    """
    drawn = []
    for images in rows:
        some = images[:SMALL_COUNT].float() / (255 if images.dtype == torch.uint8 else 1)
        share = min(1.0, SMALL_SIDE / max(some.shape[2:]))
        if share < 1:
            size = [max(1, round(share * side)) for side in some.shape[2:]]
            some = nn.functional.interpolate(some.nan_to_num(0.0), size=size, mode="area")
        drawn.append(torch.cat(list(some), dim=2))
    return png(torch.cat(drawn, dim=1))
