"""ResNets: the five of torchvision, and four small ones of one block per stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...core.config import knob
from ...core.errors import ConfigError, unknown_name
from .base import Architecture, architectures, set_channels

STEMS = ("imagenet", "small")


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)), out of place.

    torchvision's own blocks add in place, which breaks backward hooks and with them per-sample
    gradients.
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


@dataclass(frozen=True, kw_only=True)
class ResNet(Architecture):
    """A stem, one to four stages of residual blocks, and global average pooling.

    Images of any size and number of channels: for other than three, the first convolution is
    replaced. The published stem (7x7 with stride 2, then max-pooling) leaves 1x1 maps at 32
    pixels; ``small`` (3x3, stride 1, no pooling) keeps four times more along each side.

    Reference: He et al., CVPR 2016; random initialisation as in torchvision.
    """

    depths: ClassVar[tuple[int, ...]]
    bottleneck: ClassVar[bool] = False

    stem: str = knob(
        "imagenet",
        help="first layers: imagenet (7x7 stride 2 and pooling, as published) or small (3x3)",
        choices=STEMS,
    )

    def __post_init__(self) -> None:
        if self.stem not in STEMS:
            raise ConfigError(unknown_name("stem", self.stem, STEMS))

    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        from torchvision.models import resnet

        kind = resnet.Bottleneck if self.bottleneck else resnet.BasicBlock
        missing = [1] * (4 - len(self.depths))
        net = resnet.ResNet(kind, [*self.depths, *missing], num_classes=1)
        stages = [net.layer1, net.layer2, net.layer3, net.layer4][: len(self.depths)]
        return nn.Sequential(
            *_stem(net, image_shape[0], self.stem),
            *(nn.Sequential(*map(_out_of_place, stage)) for stage in stages),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ), 64 * 2 ** (len(stages) - 1) * kind.expansion


def _initialise(weight: Tensor) -> Tensor:
    return nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def _stem(net: Any, channels: int, stem: str) -> list[nn.Module]:
    if stem == "imagenet":
        set_channels(net.conv1, channels, _initialise)
        return [net.conv1, net.bn1, nn.ReLU(), net.maxpool]
    first = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    _initialise(first.weight)
    return [first, net.bn1, nn.ReLU()]


def _out_of_place(block: Any) -> Residual:
    layers = [block.conv1, block.bn1, nn.ReLU(), block.conv2, block.bn2]
    if hasattr(block, "conv3"):
        layers += [nn.ReLU(), block.conv3, block.bn3]
    shortcut = nn.Identity() if block.downsample is None else block.downsample
    return Residual(nn.Sequential(*layers), shortcut)


@architectures.register("resnet4")
@dataclass(frozen=True, kw_only=True)
class ResNet4(ResNet):
    """ResNet-4 of FedRAL's high-heterogeneity set: one stage of one block; d_k = 64."""

    when_to_use = "the smallest ResNet: mixed federations, or quick trials"
    depths = (1,)


@architectures.register("resnet6")
@dataclass(frozen=True, kw_only=True)
class ResNet6(ResNet):
    """ResNet-6 of FedRAL's high-heterogeneity set: two stages of one block; d_k = 128."""

    when_to_use = "a very small ResNet: mixed federations, or quick trials"
    depths = (1, 1)


@architectures.register("resnet8")
@dataclass(frozen=True, kw_only=True)
class ResNet8(ResNet):
    """ResNet-8 of FedRAL's high-heterogeneity set: three stages of one block; d_k = 256."""

    when_to_use = "a small ResNet that a CPU trains"
    depths = (1, 1, 1)


@architectures.register("resnet10")
@dataclass(frozen=True, kw_only=True)
class ResNet10(ResNet):
    """ResNet-10 of FedRAL's high-heterogeneity set: four stages of one block; d_k = 512."""

    when_to_use = "a small ResNet for small images: four stages of one block"
    depths = (1, 1, 1, 1)


@architectures.register("resnet18")
@dataclass(frozen=True, kw_only=True)
class ResNet18(ResNet):
    """ResNet-18; d_k = 512."""

    when_to_use = "the usual ResNet of federated papers"
    depths = (2, 2, 2, 2)


@architectures.register("resnet34")
@dataclass(frozen=True, kw_only=True)
class ResNet34(ResNet):
    """ResNet-34; d_k = 512."""

    when_to_use = "a ResNet between the usual small and large ones"
    depths = (3, 4, 6, 3)


@architectures.register("resnet50")
@dataclass(frozen=True, kw_only=True)
class ResNet50(ResNet):
    """ResNet-50; d_k = 2048."""

    when_to_use = "a deep model with long representations; wants a GPU"
    depths = (3, 4, 6, 3)
    bottleneck = True


@architectures.register("resnet101")
@dataclass(frozen=True, kw_only=True)
class ResNet101(ResNet):
    """ResNet-101; d_k = 2048."""

    when_to_use = "a very deep model, for mixed federations of papers; wants a GPU"
    depths = (3, 4, 23, 3)
    bottleneck = True


@architectures.register("resnet152")
@dataclass(frozen=True, kw_only=True)
class ResNet152(ResNet):
    """ResNet-152; d_k = 2048."""

    when_to_use = "the deepest model, for mixed federations of papers; wants a GPU"
    depths = (3, 8, 36, 3)
    bottleneck = True
