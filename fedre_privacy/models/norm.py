"""BatchNorm and its statistics, or GroupNorm in its place."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

NORMS = ("bn", "gn")
GROUPS = 32
"""Groups of a GroupNorm, as far as they divide the channels (Wu, He, ECCV 2018)."""


def with_norm(module: nn.Module, norm: str) -> nn.Module:
    """Put GroupNorm where a module has BatchNorm, if ``gn``: gcd(32, channels / 2) groups.

    No group is a single channel, whose 1 x 1 map would be normalised to nothing.

    GroupNorm normalises each sample by itself, so a sample's gradient does not depend on the
    others of its batch. Scale and shift start at 1 and 0, as those of BatchNorm do; random
    initialisation elsewhere stays as it is. Accuracy differs: compare a private model with a
    non-private one of the same norm.

    Returns:
        The module itself, changed in place, or a GroupNorm where it is a BatchNorm.
    """
    if norm == "bn":
        return module
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        channels = module.num_features
        return nn.GroupNorm(
            math.gcd(GROUPS, max(channels // 2, 1)), channels, eps=module.eps, affine=module.affine
        )
    for name, child in module.named_children():
        setattr(module, name, with_norm(child, norm))
    return module


def running_norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Layers that keep running statistics."""
    return [
        layer
        for layer in module.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
    ]


@torch.no_grad()
def take_statistics(module: nn.Module, batches: Iterable[Tensor]) -> None:
    """Take the running statistics of every BatchNorm anew: the mean over these batches.

    Dropout stays off. The module is left in evaluation mode.

    Args:
        batches: inputs of the module, two or more in each.

    Reference:  Wu and Johnson, Rethinking "Batch" in BatchNorm, arXiv 2105.07576, 2021 (Precise
                BatchNorm).
    """
    layers = running_norms(module)
    if not layers:
        return
    module.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
        layer.train()
    for part in batches:
        module(part)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    module.eval()
