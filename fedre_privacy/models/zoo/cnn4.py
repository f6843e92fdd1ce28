"""The four-layer CNN of the FedRE comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from .base import Architecture, architectures


@architectures.register("cnn4")
@dataclass(frozen=True, kw_only=True)
class FedAvgCnn(Architecture):
    """Four-layer CNN: two 5x5 convolutions (32, 64) with pooling, one layer of 512; d_k = 512.

    Images of any number of channels; the first convolution is built for it.

    Reference: "FedAvgCNN" of the public federated-learning libraries; FedRE (CVPR 2026), the
    homogeneous model and the first of the heterogeneous ten.
    """

    min_size: ClassVar[int] = 16

    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        return nn.Sequential(
            *two_convolutions(image_shape[0], 32, 64),
            nn.Linear(64 * positions(image_shape), 512),
            nn.ReLU(),
        ), 512


def two_convolutions(channels: int, first: int, second: int) -> list[nn.Module]:
    """Return two 5x5 convolutions without padding, each with ReLU and 2x2 pooling, flattened.

    Pooling comes first: the ReLU of the largest value is the largest of the ReLUs, to the last bit
    and with the same gradient, and has a quarter of the work.
    """
    return [
        nn.Conv2d(channels, first, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    ]


def positions(image_shape: tuple[int, int, int]) -> int:
    """Count the positions left of an image (C, H, W) by `two_convolutions`."""
    height, width = (((side - 4) // 2 - 4) // 2 for side in image_shape[1:])
    return height * width
