"""What every architecture is, and the registry of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from torch import Tensor, nn

from ...core.errors import ConfigError, IncompatibleError
from ...core.registry import Registry
from ..split import Normalise


@dataclass(frozen=True, kw_only=True)
class Architecture(ABC):
    """A backbone: normalised images (n, C, H, W) to flat features (n, d_k).

    Authors write `backbone`, and `takes` where the image size is limited by more than
    `min_size`. Layers must not write in place: per-sample gradients and hooks need every value.
    """

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another architecture: a clause of at most 100 characters."""
    min_size: ClassVar[int] = 1
    """Least height and width of the images (pixels)."""
    pretrained: ClassVar[bool] = False
    """Whether it begins with published weights, which everybody has."""
    parametric: ClassVar[str] = ""
    """What has to stand behind its name and a colon, in words; empty: nothing."""
    argument: ClassVar[str] = ""
    """What stands there."""

    @abstractmethod
    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """Return the backbone for images of shape (C, H, W), and the feature length d_k."""

    def preprocess(self, image_shape: tuple[int, int, int]) -> nn.Module:
        """Return what brings images in [0, 1] (n, C, H, W) to the input of the backbone."""
        return Normalise()

    def needed(self) -> str:
        """What is absent here and has to be installed or given first, in words; empty: nothing."""
        return ""

    def takes(self, height: int, width: int) -> bool:
        """Say whether images of this size (pixels) fit."""
        return min(height, width) >= self.min_size

    def sizes(self) -> str:
        """Describe the image sizes that fit, for error messages."""
        return f"images of at least {self.min_size}x{self.min_size} pixels"

    def build(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """Check the image size and return the backbone with its feature length d_k.

        Initialisation draws from torch's global generator.
        Raises:
            IncompatibleError: the architecture does not take images of this size.
        """
        channels, height, width = image_shape
        if not self.takes(height, width):
            raise IncompatibleError(
                f"Architecture '{self.name}' was given images of {channels}x{height}x{width} "
                f"(C x H x W); it needs {self.sizes()}.",
                next_step="Resize or pad the images, or choose another architecture.",
            )
        return self.backbone((channels, height, width))


class Architectures(Registry[Architecture]):
    """Architectures by name, or by ``NAME:ARGUMENT`` where a family is one part."""

    def get(self, name: str) -> type[Architecture]:
        """Return a class; with an argument, one that has it and is the same at every call.

        Raises:
            ConfigError: unknown name, or an argument for an architecture that takes none.
        """
        family, colon, argument = name.partition(":")
        kind = super().get(family)
        if colon and not (kind.parametric and argument):
            form = f"{family}:NAME, with {kind.parametric}" if kind.parametric else family
            raise ConfigError(f"Architecture '{name}' is given as {form}.")
        return _with_argument(kind, argument) if argument else kind


@cache
def _with_argument(kind: type[Architecture], argument: str) -> type[Architecture]:
    own = {"argument": argument, "name": f"{kind.name}:{argument}", "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)


architectures = Architectures("architecture", "fedre_privacy.models.zoo")
"""All architectures by name."""


def set_channels(conv: nn.Conv2d, channels: int, initialise: Callable[[Tensor], object]) -> None:
    """Give a first convolution another number of input channels, with a weight drawn anew.

    Args:
        conv: the convolution, left as it is if the number fits already.
        initialise: writes the weight in place.
    """
    if conv.in_channels == channels:
        return
    conv.in_channels = channels
    shape = (conv.out_channels, channels, *conv.kernel_size)
    conv.weight = nn.Parameter(conv.weight.new_empty(shape))
    initialise(conv.weight)


def without_inplace(module: nn.Module) -> None:
    """Switch off in-place activations everywhere in a module."""
    for part in module.modules():
        if hasattr(part, "inplace"):
            part.inplace = False  # type: ignore[assignment]
