"""Cosine coefficients of images up to a frequency, in bands of frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .denoiser import cosines

WIDENING = 1.5
"""Each band of frequencies ends so many times higher than the one before."""


class Waves:
    """Cosine coefficients of images (.., C, H, W) up to a frequency, one band after another.

    Args:
        shape: (C, H, W) of an image. finest: highest frequency, in half waves across the image.
    """

    def __init__(self, shape: tuple[int, int, int], finest: float, device: torch.device) -> None:
        channels, height, width = shape
        rows, columns = torch.arange(height) / height, torch.arange(width) / width
        radius = (rows[:, None].square() + columns.square()).sqrt() * max(height, width)
        seen = radius <= finest
        high, wide = int(seen.any(1).sum()), int(seen.any(0).sum())  # no other is ever computed
        steps = 1 + radius.clamp(min=0.5).log() / math.log(WIDENING)
        whole = steps.clamp(min=0).floor().long()[:high, :wide].expand(channels, high, wide)
        kept = seen[:high, :wide].expand(channels, high, wide).flatten().nonzero().flatten()
        kept = kept[whole.flatten()[kept].argsort(stable=True)]
        self.block = (channels, high, wide)
        self.down = cosines(height)[:high].to(device)
        self.across = cosines(width)[:wide].to(device)
        self.kept = kept.to(device)
        self.sizes: list[int] = [
            count for count in torch.bincount(whole.flatten()[kept]).tolist() if count
        ]
        """Coefficients in each band, from low frequencies to high ones."""

    def of(self, images: Tensor) -> Tensor:
        """Coefficients (.., k) of images."""
        made = self.down @ images @ self.across.T
        return made.flatten(-3).index_select(-1, self.kept)

    def images(self, coefficients: Tensor) -> Tensor:
        """Images with these coefficients (.., k) and no others."""
        whole = coefficients.new_zeros(*coefficients.shape[:-1], math.prod(self.block))
        whole.index_copy_(-1, self.kept, coefficients)
        images: Tensor = self.down.T @ whole.unflatten(-1, self.block) @ self.across
        return images
