"""The decoder that learnt defences train against."""

from __future__ import annotations

from torch import nn

from .local_pass import ModelShapes


def image_decoder(shapes: ModelShapes, width: int) -> nn.Sequential:
    """Representations (n, d) to images (n, C, H, W) in [0, 1].

    A linear layer makes maps of a quarter of the size, which two convolutions enlarge.

    Args:
        width: channels of the last hidden maps; the first have twice as many.
    """
    channels, height, breadth = shapes.image
    half = (-(-height // 2), -(-breadth // 2))
    quarter = (-(-half[0] // 2), -(-half[1] // 2))
    return nn.Sequential(
        nn.Linear(shapes.dim, 2 * width * quarter[0] * quarter[1]),
        nn.ReLU(),
        nn.Unflatten(1, (2 * width, *quarter)),
        nn.Upsample(size=half),
        nn.Conv2d(2 * width, width, 3, padding=1),
        nn.ReLU(),
        nn.Upsample(size=(height, breadth)),
        nn.Conv2d(width, channels, 3, padding=1),
        nn.Sigmoid(),
    )
