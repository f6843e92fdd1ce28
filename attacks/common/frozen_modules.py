"""A client's module in an attacker's hands: a frozen copy, and what it makes of images."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedre_privacy.models.probe import channels_last

BATCH = 256
"""Images per pass; a constant, so that results do not depend on memory."""
PASS = BATCH * 3 * 32 * 32
"""Values of images per pass, at most: 64 colour images of 64 pixels."""


def frozen_copy(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy on a device, in evaluation mode, whose parameters take no gradient.

    Its convolutions are computed channels last on a CPU, which is faster, where the module bears
    it (`models.probe`).
    """
    made = copy.deepcopy(module).to(device)
    if device.type == "cpu":
        channels_last(made)
    return made.eval().requires_grad_(False)


def outputs(
    module: Callable[[Tensor], Tensor],
    images: Tensor,
    *,
    batch: int | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """What a module makes of images (n, C, H, W), (n, d), without gradients.

    Args:
        batch: images per pass; none: `BATCH`, or fewer of large images, whose maps leave the cache.
        device: where the module is; what it makes is brought to the CPU. None: module and images
            are on one device, and so is what is returned.
    """
    parts = images.split(batch or max(1, min(BATCH, PASS // max(1, images[:1].numel()))))
    with torch.no_grad():
        if device is None:
            return torch.cat([module(part) for part in parts])
        return torch.cat([module(part.to(device)).cpu() for part in parts])
