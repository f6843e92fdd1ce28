"""BatchNorm, or GroupNorm in its place."""

from __future__ import annotations

import math

from torch import nn

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
