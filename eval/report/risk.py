"""Pictures of the records whose membership was told most often."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from .scheme import PHOTO
from .style import SMALL, framed_figure, plain


def risk_sheet(images: Tensor, below: Sequence[str], *, title: str, caption: str = "") -> Figure:
    """Draw images in a row, with a few words below each.

    Args:
        images: (n, C, H, W) in [0, 1], n >= 1. below: one text for each.
    """
    figure = framed_figure(max(3.0, 0.8 * len(images)), 1.5, title, caption)
    axes = figure.subplots(1, len(images), squeeze=False)[0]
    for number, (place, image, text) in enumerate(zip(axes, images, below, strict=True)):
        pixels = image.permute(1, 2, 0).clamp(0, 1).numpy()
        place.set_gid(f"{PHOTO}-{number}")
        place.imshow(
            pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=1
        )
        place.set_xticks([])
        place.set_yticks([])
        place.set_xlabel(plain(text), fontsize=SMALL)
    return figure
