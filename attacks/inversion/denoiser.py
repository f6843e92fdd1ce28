"""A small diffusion model of images: a denoiser for every size of noise, learnt from few images.

First comes the best linear denoiser, in closed form (`image_spectrum`). A small convolutional
network then corrects it. It sees patches and not positions, so a few hundred images hold enough of
them.

Reference: Karras et al., Elucidating the Design Space of Diffusion-Based Generative Models, NeurIPS
2022 (training over all sizes of noise, weights and scaling).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.common.step_sizes import set_rate, warm_cosine
from fedre_privacy.core.config import knob
from fedre_privacy.core.optimisers import Adam
from fedre_privacy.core.rng import seeded_generators, stream

from .image_spectrum import ImageSpectrum

SPREAD = 0.25
"""Standard deviation of pixels in [0, 1], about."""
NOISES = (0.03, 1.0)
"""Least and largest noise that the network is trained on, in pixel values."""
LOOKS = 12
"""Reports of the loss during the training."""


@dataclass(frozen=True, kw_only=True)
class DenoiserTraining:
    """How the denoiser is trained: settings of `diffusion`."""

    width: int = knob(32, help="channels of the denoising network", ge=1)
    layers: int = knob(5, help="convolutions of the denoising network", ge=2)
    updates: int = knob(1000, help="optimiser steps of its training", ge=1)
    lr: float = knob(2e-3, help="Adam step size at its peak", gt=0)
    batch: int = knob(32, help="images in each step", ge=1)


class Denoiser(ImageSpectrum):
    """Images (n, C, H, W) with Gaussian noise of known size (n,) to what they were, not clamped.

    Args:
        shape: (C, H, W) of an image. width, layers: of the network.
    """

    def __init__(self, shape: tuple[int, int, int], width: int, layers: int) -> None:
        super().__init__(shape)
        channels = shape[0]
        self.enter = nn.Conv2d(8 * channels + 1, width, 3, padding=1)
        self.middle = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1) for _ in range(layers - 2)
        )
        self.leave = nn.Conv2d(width, 4 * channels, 3, padding=1)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)  # type: ignore[arg-type]

    def forward(self, noisy: Tensor, noise: Tensor) -> Tensor:
        height, width = noisy.shape[2:]
        size = noise.reshape(-1, 1, 1, 1)
        linear = self.linear(noisy, noise)
        seen = torch.cat([(linear - 0.5) / SPREAD, (noisy - linear) / size], 1)
        seen = F.pixel_unshuffle(F.pad(seen, (0, width % 2, 0, height % 2), mode="replicate"), 2)
        told = (size.log() / 2).expand(-1, 1, *seen.shape[2:])
        x = F.relu(self.enter(torch.cat([seen, told], 1)))
        for layer in self.middle:
            x = x + F.relu(layer(x))
        step = F.pixel_shuffle(self.leave(x), 2)[..., :height, :width]
        return linear + size * SPREAD / (size.square() + SPREAD**2).sqrt() * step


def blank(shape: tuple[int, int, int], how: DenoiserTraining) -> Denoiser:
    """Make a denoiser that has learnt nothing; draws from no global stream."""
    with seeded_generators(0, "blank denoiser"):
        return Denoiser(shape, how.width, how.layers)


def train_denoiser(
    images: Tensor,
    how: DenoiserTraining,
    *,
    seed: int,
    purpose: str,
    tick: Callable[[int, Tensor], None],
) -> Denoiser:
    """Train a denoiser on images (m, C, H, W) in [0, 1], m > 0, on their device.

    Args:
        purpose: names the streams of its random numbers.
        tick: called now and then with the number of updates done and the loss (1,).
    """
    device, (channels, height, width) = images.device, images.shape[1:]
    with seeded_generators(seed, f"denoiser {purpose}"):
        net = Denoiser((channels, height, width), how.width, how.layers).to(device)
    net.fit_linear(images)
    draws = stream(seed, f"noise {purpose}")
    optimiser = Adam(net.parameters(), lr=how.lr, foreach=True)
    least, most = map(math.log, NOISES)
    every = max(1, how.updates // LOOKS)
    for update in range(how.updates):
        set_rate(optimiser, how.lr * warm_cosine(update, how.updates))
        chosen = torch.randint(len(images), (how.batch,), generator=draws).to(device)
        drawn = torch.rand(how.batch, generator=draws)
        sizes = (least + (most - least) * drawn).exp().to(device)
        added = torch.randn(how.batch, channels, height, width, generator=draws).to(device)
        clean, size = images[chosen], sizes.reshape(-1, 1, 1, 1)
        weight = 1 / size.square() + 1 / SPREAD**2
        loss = (weight * (net(clean + size * added, sizes) - clean).square()).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if update % every == 0 or update == how.updates - 1:
            tick(update, loss.detach().reshape(1))
    return net.eval().requires_grad_(False)
