"""Random changes of training images, drawn anew for every image of every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Augmentation = Callable[[Tensor, torch.Generator], Tensor]

PADDING = 4
"""Black pixels around an image before it is cropped to its size again."""

ERASED_SHARE, ERASED_RATIO = (0.04, 0.2), (0.5, 2.0)
"""Share of an image's area that is erased, and height over width of that part."""


def flip(images: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror half of the images from left to right.

    Shape: images and result (b, C, H, W).
    """
    mirrored = torch.rand(len(images), generator=rng) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def crop(images: Tensor, rng: torch.Generator) -> Tensor:
    """Shift each image by up to `PADDING` pixels each way; what comes in is black.

    Shape: images and result (b, C, H, W).
    """
    count, _, height, width = images.shape
    by = torch.randint(2 * PADDING + 1, (count, 2), generator=rng).to(images.device)
    rows = by[:, :1] + torch.arange(height, device=images.device)
    columns = by[:, 1:] + torch.arange(width, device=images.device)
    padded = F.pad(images, (PADDING,) * 4)
    which = torch.arange(count, device=images.device)[:, None, None]
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def erase(images: Tensor, rng: torch.Generator) -> Tensor:
    """Fill a rectangle of half of the images with their mean colour.

    Shape: images and result (b, C, H, W).
    Reference: Zhong et al., Random erasing data augmentation, AAAI 2020.
    """
    count, _, height, width = images.shape
    drawn = torch.rand(count, 5, generator=rng)
    area = height * width * (ERASED_SHARE[0] + drawn[:, 0] * (ERASED_SHARE[1] - ERASED_SHARE[0]))
    ratio = ERASED_RATIO[0] * (ERASED_RATIO[1] / ERASED_RATIO[0]) ** drawn[:, 1]
    tall = (area * ratio).sqrt().round().clamp(1, height)
    wide = (area / ratio).sqrt().round().clamp(1, width)
    top, left = drawn[:, 2] * (height - tall), drawn[:, 3] * (width - wide)
    row, column = torch.arange(height), torch.arange(width)
    high = (row >= top.round()[:, None]) & (row < (top.round() + tall)[:, None])
    broad = (column >= left.round()[:, None]) & (column < (left.round() + wide)[:, None])
    gone = high[:, :, None] & broad[:, None, :] & (drawn[:, 4] < 0.5)[:, None, None]
    return torch.where(gone[:, None].to(images.device), images.mean((2, 3), keepdim=True), images)


STEPS: Mapping[str, tuple[Augmentation, ...]] = {
    "none": (),
    "flip": (flip,),
    "crop-flip": (crop, flip),
    "crop-flip-erase": (crop, flip, erase),
}
"""What ``train.augment`` names."""


def augment_batch(name: str, images: Tensor, rng: torch.Generator) -> Tensor:
    """Change the images of a batch.

    Args:
        name: one of `STEPS`. images: (b, C, H, W) in [0, 1]. rng: CPU stream.
    """
    for step in STEPS[name]:
        images = step(images, rng)
    return images
