"""Coordinates of few pictures of many pixels in the space that they span.

A regression from representations to pictures answers combinations of the pictures that it was
fitted to. Where these are far fewer than pixels, it is fitted to their coordinates, to the same
answers up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .linear_map import LinearMap
from .simulated_uploads import views

PIXELS_A_PICTURE = 8
"""Pixels for each picture from which coordinates are worth their computation."""
MOST = 2000
"""Pictures at most, since the basis holds as many times all pixels."""


@dataclass(frozen=True, eq=False)
class PictureBasis:
    """Orthonormal directions (P, k) in double precision; None: pictures are their own coordinates.

    Coordinates (n, k) have the inner products of the flat pictures (n, P).
    """

    directions: Tensor | None = None

    @classmethod
    def of_views(cls, images: Tensor, count: int) -> PictureBasis:
        """The basis of `count` views of images (n, C, H, W) and of all their combinations."""
        pictures = count * len(images)
        if pictures > MOST or PIXELS_A_PICTURE * pictures > images[0].numel():
            return cls()
        flat = torch.cat([moved.flatten(1) for moved in views(images, count)])
        return cls(torch.linalg.qr(flat.double().T).Q)

    def coordinates(self, flat: Tensor) -> Tensor:
        """Of pictures (n, P)."""
        return flat if self.directions is None else flat.double() @ self.directions

    def pictures(self, coordinates: Tensor) -> Tensor:
        """Flat pictures (n, P) in single precision, of coordinates (n, k)."""
        if self.directions is None:
            return coordinates
        return coordinates @ self.directions.T.to(coordinates)

    def map_to_pictures(self, found: LinearMap) -> LinearMap:
        """A map to coordinates as one to flat pictures."""
        if self.directions is None:
            return found
        mean = self.pictures(found.image_mean[None])[0]
        return replace(found, weight=self.pictures(found.weight), image_mean=mean)
