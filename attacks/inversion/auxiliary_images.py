"""Auxiliary images in their own size, and in the one in which maps write pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.common.frozen_modules import BATCH, drawn_outputs, images_per_pass
from fedre_privacy.core.types import Observation

from .simulated_uploads import views

WHOLE, LOW = 128, 64
"""Sides (pixels): up to the first, images are written as they are; larger ones with the second."""


@dataclass(frozen=True)
class Resolution:
    """The size in which maps write pictures, and the ways between pictures and images.

    A map from d values to images at 224 pixels has 150,528 d weights and blurs what is finer than
    the d directions that it has seen. Its low frequencies are written instead: means over areas,
    enlarged by bilinear interpolation. Where both sizes are one, nothing is changed.

    Args:
        image: (H, W). picture: (h, w), each at most as long.
    """

    image: tuple[int, int]
    picture: tuple[int, int]

    @classmethod
    def of(cls, image_shape: tuple[int, ...], asked: int | None = None) -> Resolution:
        """The resolution of images (C, H, W).

        Args:
            asked: the longer side of a picture; None: that of the image up to `WHOLE`, else `LOW`.
        """
        height, width = image_shape[1:]
        side = max(height, width)
        most = asked or (side if side <= WHOLE else LOW)
        if most >= side:
            return cls((height, width), (height, width))
        small = max(1, round(height * most / side)), max(1, round(width * most / side))
        return cls((height, width), small)

    @property
    def whole(self) -> bool:
        """Whether a picture has the size of an image."""
        return self.image == self.picture

    @property
    def pixels(self) -> float:
        """Pixels of an image for each of a picture."""
        return math.prod(self.image) / math.prod(self.picture)

    def reduce(self, images: Tensor) -> Tensor:
        """Pictures (n, C, h, w) of images (n, C, H, W)."""
        if self.whole:
            return images
        return torch.cat(
            [F.adaptive_avg_pool2d(part, self.picture) for part in images.split(BATCH)]
        )

    def enlarge(self, pictures: Tensor) -> Tensor:
        """Images (n, C, H, W) of pictures (n, C, h, w), within the range of these."""
        if self.whole:
            return pictures
        return F.interpolate(pictures, self.image, mode="bilinear", align_corners=False)

    def through(self, extract: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """An extractor of pictures, of one of images."""
        return extract if self.whole else lambda pictures: extract(self.enlarge(pictures))


@dataclass(frozen=True)
class AuxImages:
    """Auxiliary images (n, C, H, W) in [0, 1] on a device, and how maps write such images."""

    images: Tensor
    resolution: Resolution

    @classmethod
    def of(cls, observation: Observation, device: torch.device, side: int | None) -> AuxImages:
        """Those of an observation.

        Args:
            side: of a picture, see `Resolution.of`.
        """
        if observation.aux is None:
            raise ValueError("auxiliary images are absent")
        resolution = Resolution.of(observation.image_shape, side)
        return cls(observation.aux.float().to(device), resolution)

    @cached_property
    def pictures(self) -> Tensor:
        """The same as pictures (n, C, h, w)."""
        return self.resolution.reduce(self.images)

    def representations(self, extract: nn.Module, count: int, rng: torch.Generator) -> list[Tensor]:
        """Representations (n, d) of `count` versions of the images.

        Args:
            rng: of changes that clients draw.
        """

        def of(images: Tensor) -> list[Tensor]:
            return [drawn_outputs(extract, moved, rng) for moved in views(images, count)]

        if self.resolution.whole:
            return of(self.images)
        once = images_per_pass(self.images)
        # moved copies of all large images at once would be three times as many
        parts = [of(part) for part in self.images.split(BATCH // once * once)]
        return [torch.cat(one) for one in zip(*parts, strict=True)]
