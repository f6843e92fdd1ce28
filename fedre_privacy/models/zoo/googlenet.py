"""GoogLeNet of torchvision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from .base import Architecture, architectures, set_channels


class ConvNormRelu(nn.Sequential):
    """Convolution, BatchNorm, ReLU; torchvision's own block writes its activation in place."""

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, bias=False, **options),
            nn.BatchNorm2d(out_channels, eps=0.001),
            nn.ReLU(),
        )


@architectures.register("googlenet")
@dataclass(frozen=True, kw_only=True)
class GoogLeNet(Architecture):
    """GoogLeNet with BatchNorm, without auxiliary heads and classifier; d_k = 1024.

    Images of any number of channels: for other than three, the first convolution is replaced.
    The dropout of 0.2 before the classifier stays, so representations taken in train mode are
    noisy. Weights start from a truncated normal of std 0.01, torchvision's default.

    Reference: Szegedy et al., CVPR 2015; random initialisation as in torchvision.
    """

    when_to_use = "mixed federations of papers: a deep model with branches"
    min_size: ClassVar[int] = 15

    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        from torchvision.models.googlenet import GoogLeNet as Published
        from torchvision.models.googlenet import Inception, InceptionAux

        inception = partial(Inception, conv_block=ConvNormRelu)
        net = Published(
            num_classes=1,
            aux_logits=False,
            init_weights=True,
            blocks=[ConvNormRelu, inception, InceptionAux],
        )
        set_channels(net.conv1[0], image_shape[0], _initialise)
        net.fc = nn.Identity()
        return net, 1024


def _initialise(weight: Tensor) -> Tensor:
    return nn.init.trunc_normal_(weight, mean=0.0, std=0.01, a=-2, b=2)
