"""The four-layer CNN of the FedRE comparison, and the five CNNs of FedMRL and FedRAL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ...core.config import knob
from .base import Architecture, architectures


@dataclass(frozen=True, kw_only=True)
class CnnFamily(Architecture):
    """Two 5x5 convolutions with pooling, two hidden layers; the second is the representation.

    Images of any number of channels; the first convolution is built for it. Images of exactly
    1x28x28 get the Fashion-MNIST variant: 20 and 20 filters and d_k = 50 instead of 500.

    Reference: FedMRL (NeurIPS 2024) and FedRAL, model tables.
    """

    min_size: ClassVar[int] = 16
    filters: ClassVar[tuple[int, int]]
    hidden: ClassVar[int]
    hidden_fashion: ClassVar[int]

    width: int | None = knob(
        None,
        help="units of the last hidden layer = feature length; none: 500, or 50 for 1x28x28",
        ge=1,
    )

    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        fashion = image_shape == (1, 28, 28)
        first, second = (20, 20) if fashion else self.filters
        hidden = self.hidden_fashion if fashion else self.hidden
        width = (50 if fashion else 500) if self.width is None else self.width
        return nn.Sequential(
            *two_convolutions(image_shape[0], first, second),
            nn.Linear(second * positions(image_shape), hidden),
            nn.ReLU(),
            nn.Linear(hidden, width),
            nn.ReLU(),
        ), width


@architectures.register("cnn-1")
@dataclass(frozen=True, kw_only=True)
class Cnn1(CnnFamily):
    """CNN-1: 16 and 32 filters, 2000 hidden units (300 for 1x28x28); see `CnnFamily`."""

    when_to_use = "the largest of five CNNs of papers on mixed architectures"
    filters = (16, 32)
    hidden = 2000
    hidden_fashion = 300


@architectures.register("cnn-2")
@dataclass(frozen=True, kw_only=True)
class Cnn2(CnnFamily):
    """CNN-2: 16 and 16 filters, 2000 hidden units (200 for 1x28x28); see `CnnFamily`."""

    when_to_use = "the second of five CNNs of papers on mixed architectures: fewer filters"
    filters = (16, 16)
    hidden = 2000
    hidden_fashion = 200


@architectures.register("cnn-3")
@dataclass(frozen=True, kw_only=True)
class Cnn3(CnnFamily):
    """CNN-3: 16 and 32 filters, 1000 hidden units (150 for 1x28x28); see `CnnFamily`."""

    when_to_use = "the third of five CNNs of papers on mixed architectures"
    filters = (16, 32)
    hidden = 1000
    hidden_fashion = 150


@architectures.register("cnn-4")
@dataclass(frozen=True, kw_only=True)
class Cnn4(CnnFamily):
    """CNN-4: 16 and 32 filters, 800 hidden units (100 for 1x28x28); see `CnnFamily`.

    FedMRL prints 3.81 MB for it, which 800 units do not give (4.04 MiB); FedRAL's 4.05 fits.
    """

    when_to_use = "the fourth of five CNNs of papers on mixed architectures"
    filters = (16, 32)
    hidden = 800
    hidden_fashion = 100


@architectures.register("cnn-5")
@dataclass(frozen=True, kw_only=True)
class Cnn5(CnnFamily):
    """CNN-5: 16 and 32 filters, 500 hidden units (50 for 1x28x28); see `CnnFamily`."""

    when_to_use = "the smallest of five CNNs of papers on mixed architectures"
    filters = (16, 32)
    hidden = 500
    hidden_fashion = 50


@architectures.register("cnn4")
@dataclass(frozen=True, kw_only=True)
class FedAvgCnn(Architecture):
    """Four-layer CNN: two 5x5 convolutions (32, 64) with pooling, one layer of 512; d_k = 512.

    Images of any number of channels; the first convolution is built for it.

    Reference: "FedAvgCNN" of the public federated-learning libraries; FedRE (CVPR 2026), the
    homogeneous model and the first of the heterogeneous ten.
    """

    when_to_use = "small images on a CPU: the default"
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
