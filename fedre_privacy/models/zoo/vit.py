"""The base Vision Transformers of torchvision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from .base import Architecture, architectures, set_channels


@dataclass(frozen=True, kw_only=True)
class VitBase(Architecture):
    """ViT-B: 12 layers of width 768; features are the class token, d_k = 768.

    Built for the size of the images, which must be square with a side that is a multiple of the
    patch. Any number of channels: for other than three, the patch projection is replaced.

    Reference: Dosovitskiy et al., ICLR 2021; random initialisation as in torchvision.
    """

    patch: ClassVar[int]

    def takes(self, height: int, width: int) -> bool:
        return height == width and height >= self.patch and height % self.patch == 0

    def sizes(self) -> str:
        return (
            f"square images whose side is a multiple of {self.patch} pixels, "
            f"at least {self.patch}x{self.patch}"
        )

    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        from torchvision.models import VisionTransformer

        net = VisionTransformer(
            image_size=image_shape[1],
            patch_size=self.patch,
            num_layers=12,
            num_heads=12,
            hidden_dim=768,
            mlp_dim=3072,
            num_classes=1,
        )
        set_channels(net.conv_proj, image_shape[0], _initialise)
        net.heads = nn.Identity()
        return net, 768


def _initialise(weight: Tensor) -> Tensor:
    return nn.init.trunc_normal_(weight, std=math.sqrt(1 / weight[0].numel()))


@architectures.register("vit-b-16")
@dataclass(frozen=True, kw_only=True)
class VitB16(VitBase):
    """ViT-B/16: patches of 16x16 pixels; d_k = 768."""

    when_to_use = "a transformer; wants a GPU and large images"
    min_size: ClassVar[int] = 16
    patch: ClassVar[int] = 16


@architectures.register("vit-b-32")
@dataclass(frozen=True, kw_only=True)
class VitB32(VitBase):
    """ViT-B/32: patches of 32x32 pixels, so one patch at 32 pixels; d_k = 768."""

    when_to_use = "a transformer with large patches: cheaper than vit-b-16"
    min_size: ClassVar[int] = 32
    patch: ClassVar[int] = 32
