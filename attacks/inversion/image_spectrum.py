"""Images as Gaussian vectors whose cosine coefficients are independent, learnt from a few images.

Natural images are alike in how much they vary at each frequency and in how their colours go
together, so a few hundred images tell it. The best denoiser of such images and how unlikely an
image is among them follow in closed form.

Reference: Wiener filter; Field, Relations between the statistics of natural images and the response
properties of cortical cells, JOSA A 1987 (the spectrum of natural images).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.eigenvalues import symmetric_eigen

SMOOTHED = 1
"""Variances are averaged over so many neighbouring frequencies on each side."""
UNSMOOTHED = 2
"""So many lowest frequencies of each axis are not: their variances differ too much."""
LEAST_VARIANCE = 1e-9


class ImageSpectrum(nn.Module):
    """Mean and variances of images (n, C, H, W) by frequency, and what follows from them.

    Args:
        shape: (C, H, W) of an image.
    """

    mean: Tensor
    variances: Tensor
    axes: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, across = shape
        self.register_buffer("mean", torch.full((1, *shape), 0.5))
        self.register_buffer("variances", torch.ones(shape))
        self.register_buffer("axes", torch.zeros(channels, channels, height, across))
        self.register_buffer("rows", cosines(height), persistent=False)
        self.register_buffer("columns", cosines(across), persistent=False)

    def fit_linear(self, images: Tensor) -> None:
        """Take mean and variances of images (m, C, H, W), m > 0."""
        channels, height, width = images.shape[1:]
        self.mean.copy_(images.mean(0, keepdim=True))
        waves = self._waves(images - self.mean)
        both = torch.einsum("nchw,ndhw->cdhw", waves, waves) / len(images)
        size = 2 * SMOOTHED + 1
        flat = both.reshape(1, channels * channels, height, width)
        near = F.avg_pool2d(F.pad(flat, (SMOOTHED,) * 4, mode="replicate"), size, 1)
        near = near.reshape(both.shape)
        near[..., :UNSMOOTHED, :UNSMOOTHED] = both[..., :UNSMOOTHED, :UNSMOOTHED]
        values, vectors = symmetric_eigen(near.permute(2, 3, 0, 1).double())
        self.variances.copy_(values.clamp(min=LEAST_VARIANCE).permute(2, 0, 1))
        self.axes.copy_(vectors.permute(2, 3, 0, 1))

    def linear(self, noisy: Tensor, noise: Tensor) -> Tensor:
        """The best linear guess at images (n, C, H, W) under Gaussian noise of known size (n,)."""
        kept = self.variances / (self.variances + noise.reshape(-1, 1, 1, 1).square())
        return self.mean + self._filter(noisy - self.mean, kept)

    def left(self, change: Tensor, noise: Tensor) -> Tensor:
        """Apply the covariance of images given their noisy versions to changes (n, C, H, W)."""
        squared = noise.reshape(-1, 1, 1, 1).square()
        return self._filter(change, self.variances * squared / (self.variances + squared))

    def unlikelihood(self, images: Tensor, noise: float) -> Tensor:
        """Minus the log density of images (n, C, H, W) for each number in them (n,).

        It is half the squared Mahalanobis distance from the mean, without the constant, of images
        with white noise of this size on them. Its slope is what `linear` takes off an image, over
        the variance of the noise.
        """
        apart = self._turned(images - self.mean).square() / (self.variances + noise**2)
        return apart.flatten(1).mean(1) / 2

    def _filter(self, images: Tensor, factors: Tensor) -> Tensor:
        waves = torch.einsum("cdhw,ndhw->nchw", self.axes, self._turned(images) * factors)
        return torch.einsum("ih,ncij,jw->nchw", self.rows, waves, self.columns)

    def _turned(self, images: Tensor) -> Tensor:
        """Coefficients that are independent of each other."""
        return torch.einsum("cdhw,nchw->ndhw", self.axes, self._waves(images))

    def _waves(self, images: Tensor) -> Tensor:
        """Cosine coefficients of images."""
        return torch.einsum("ih,nchw,jw->ncij", self.rows, images, self.columns)


def cosines(count: int) -> Tensor:
    """The orthonormal discrete cosine transform of `count` points as a matrix."""
    place = torch.arange(count, dtype=torch.float64)
    made = torch.cos(torch.pi / count * (place + 0.5) * place[:, None]) * math.sqrt(2 / count)
    made[0] /= math.sqrt(2)
    return made.float()
