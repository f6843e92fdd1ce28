"""MobileNetV2 of torchvision."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from .base import Architecture, architectures, set_channels, without_inplace


@architectures.register("mobilenet-v2")
@dataclass(frozen=True, kw_only=True)
class MobileNetV2(Architecture):
    """MobileNetV2 without its classifier; d_k = 1280.

    Images of any size and number of channels: for other than three, the first convolution is
    replaced. The dropout of 0.2 before the classifier stays, so representations taken in train
    mode are noisy.

    Reference: Sandler et al., CVPR 2018; random initialisation as in torchvision.
    """

    when_to_use = "mixed federations of papers: few parameters for its depth"

    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        from torchvision.models import mobilenet_v2

        net = mobilenet_v2(weights=None, num_classes=1)
        without_inplace(net)
        set_channels(net.features[0][0], image_shape[0], _initialise)
        return nn.Sequential(
            net.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(p=0.2)
        ), 1280


def _initialise(weight: Tensor) -> Tensor:
    return nn.init.kaiming_normal_(weight, mode="fan_out")
