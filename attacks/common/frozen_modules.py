"""A client's module in an attacker's hands: a frozen copy, and what it makes of images."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import RandomModule
from fedre_privacy.models.probe import channels_last
from fedre_privacy.models.shared_passes import SharedPasses, extractor_name

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


def images_per_pass(images: Tensor) -> int:
    """How many of some images (n, C, H, W) go through a module at once, at most `BATCH`."""
    return max(1, min(BATCH, PASS // max(1, images[:1].numel())))


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
    parts = images.split(batch or images_per_pass(images))
    with torch.no_grad():
        if device is None:
            return torch.cat([module(part) for part in parts])
        return torch.cat([module(part.to(device)).cpu() for part in parts])


def drawn_outputs(
    module: nn.Module,
    images: Tensor,
    generator: torch.Generator,
    *,
    device: torch.device | None = None,
) -> Tensor:
    """As `outputs`, with fresh draws where clients change representations at random."""
    if not isinstance(module, RandomModule):
        return outputs(module, images, device=device)
    return outputs(lambda part: module.sample(part, generator), images, device=device)


def representations_of(
    passes: SharedPasses,
    owner: tuple[int, int],
    extract: nn.Module,
    aux: Tensor,
    device: torch.device,
) -> Tensor:
    """Representations (n, d), on the CPU, of the auxiliary images (n, C, H, W) of an attack.

    Where clients change them at random they are drawn, the same in every attack.

    Args:
        passes: of the attack, where those of its extractors are kept.
        owner: (client, round) of the extractor, a frozen copy on the device.
    """

    def make() -> list[Tensor]:
        draws = stream(0, "drawn representations", client=owner[0], round=owner[1])
        return [drawn_outputs(extract, aux.float().to(device), draws)]

    return passes.of(extractor_name(owner, extract), 1, make)[0].cpu()
