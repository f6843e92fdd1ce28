"""Backbones with published weights: what their files have to declare, and how they are built."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import nn

from ...core.config import knob
from ...core.errors import IncompatibleError
from ..frozen_backbone import SharedBackbone
from ..preprocessing import COLOURS, FitImages
from ..weights import WeightsFile, load_backbone
from .base import Architecture

LARGEST_SIDE = 1024
"""Pixels to which images may be brought."""


@dataclass(frozen=True)
class PublishedInput:
    """The images that a backbone was trained on.

    Args:
        size: height and width (pixels). mean, std: of each channel, of images in [0, 1].
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class SplitNetwork:
    """A network without its last linear layer.

    Args:
        module: images (n, 3, size, size), normalised, to flat features (n, length).
        head: name of the layer that is left out.
        inner: what the published weights fit, `module` or a part of it.
    """

    module: nn.Module
    length: int
    head: str
    inner: nn.Module


@dataclass(frozen=True, kw_only=True)
class PublishedBackbone(Architecture):
    """Base of backbones that begin with published weights, split at the last linear layer.

    Images of one or three channels and any size are brought to `size` inside the model.
    """

    pretrained: ClassVar[bool] = True

    size: int | None = knob(
        None,
        help="height and width to which images are brought inside the model; none: as published",
        unit="pixels",
        ge=32,
        le=LARGEST_SIDE,
    )

    @abstractmethod
    def network(self, size: int) -> SplitNetwork:
        """Return the network without its last linear layer, drawn at random.

        Args:
            size: height and width of its images (pixels).

        Raises:
            MissingExtraError: a package that it needs is not installed.
        """

    @abstractmethod
    def weights(self) -> WeightsFile:
        """Return the file of its weights.

        Raises:
            MissingExtraError, MissingInputError: it is not there.
        """

    @abstractmethod
    def published(self) -> PublishedInput:
        """Return what images it was trained on."""

    def side(self) -> int:
        """Height and width to which images are brought (pixels)."""
        return self.published().size if self.size is None else self.size

    def preprocess(self, image_shape: tuple[int, int, int]) -> nn.Module:
        told = self.published()
        return FitImages(image_shape, self.side(), told.mean, told.std)

    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        channels = image_shape[0]
        if channels not in (1, COLOURS):
            raise IncompatibleError(
                f"Architecture '{self.name}' was given images of {channels} channels; it needs "
                "grey or colour images.",
                next_step="Choose another architecture, or other images.",
            )
        device = torch.get_default_device()
        if device.type == "meta":
            made = self.network(self.side())
            return made.module, made.length
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            made, file = self.network(self.side()), self.weights()
            load_backbone(made.inner, file.read(), file.path, made.head)
        return made.module.to(device), made.length

    def identity(self) -> str:
        """Name, weights and size, which decide all features."""
        return f"{self.name}-{self.weights().sha256[:16]}-{self.side()}"


@cache
def shared_backbone(
    architecture: PublishedBackbone, image_shape: tuple[int, int, int]
) -> SharedBackbone:
    """The one frozen backbone of an architecture in this process, for images of a shape.

    Raises:
        FedreError: as `Architecture.build`.
    """
    with torch.device("cpu"):
        net, length = architecture.build(image_shape)
        whole = nn.Sequential(architecture.preprocess(image_shape), net)
    shape = "x".join(map(str, image_shape))
    return SharedBackbone(whole, length, f"{architecture.identity()}-{shape}")


def without_last_linear(network: nn.Module, name: str, size: int) -> SplitNetwork:
    """Split a classifier at its last linear layer, which has to give its output.

    Args:
        name: of the architecture, for the error. size: height and width of its images.

    Raises:
        IncompatibleError: its output is not that of a linear layer.
    """
    found = [key for key, part in network.named_modules() if isinstance(part, nn.Linear)]
    if not found:
        raise IncompatibleError(f"Architecture '{name}' has no linear layer to be split at.")
    head = found[-1]
    layer = network.get_submodule(head)
    assert isinstance(layer, nn.Linear)
    place, _, last = head.rpartition(".")
    setattr(network.get_submodule(place), last, nn.Identity())
    with torch.no_grad():
        parameter = next(network.parameters())
        made = network.eval()(parameter.new_zeros(1, COLOURS, size, size))
    if not isinstance(made, torch.Tensor) or made.shape != (1, layer.in_features):
        raise IncompatibleError(
            f"Architecture '{name}' does not end in the linear layer '{head}'.",
            next_step="Choose a classifier whose output is that of a linear layer.",
        )
    return SplitNetwork(network, layer.in_features, head, network)
