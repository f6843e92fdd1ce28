"""Images that anybody may hold: the material of floors and galleries."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError


@dataclass(frozen=True, eq=False)
class PublicImages:
    """Held-out images, disjoint from every client's training data (the caller's duty).

    Shape:
        images (m, C, H, W) in [0, 1], m >= 1; labels (m,) in the same coding as the truth's.

    Raises:
        IncompatibleError: no image, or lengths that differ.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or not len(self.images) or len(self.images) != len(self.labels):
            raise IncompatibleError(
                f"Public images have shape {tuple(self.images.shape)} with {len(self.labels)} "
                "labels; needed are (m, C, H, W) with m >= 1 and one label each.",
                next_step="Set aside some held-out images, for example the test split.",
            )
