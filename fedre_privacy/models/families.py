"""Which client runs which architecture, and building one client's model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from ..core.config import knob, knobs
from ..core.errors import ConfigError, unknown_name
from .mapping import MAPPINGS, build_mapping
from .norm import NORMS, with_norm
from .probe import give_copy, needs_copy
from .split import SplitModel, num_parameters
from .zoo import Architecture, architectures
from .zoo.resnet import STEMS

_NEED_COPY: dict[tuple[object, ...], bool] = {}
"""Whether the images of an architecture have to be copied, as far as it was tried."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "het10": (
        "cnn4",
        "googlenet",
        "mobilenet-v2",
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "vit-b-16",
        "vit-b-32",
    ),
    "cnn5": ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"),
    "resnets": ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    "high-het": (
        "resnet4",
        "resnet6",
        "resnet8",
        "resnet10",
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "cnn4",
        "vit-b-16",
    ),
}
"""Published sets of architectures: FedRE's ten, the five CNNs of FedMRL and FedRAL, FedRAL's
ResNets for TinyImageNet and its eleven for high heterogeneity (the paper does not say which CNN
and which ViT; cnn4 and vit-b-16 are our choice)."""

MOST_UNITS = 1 << 16
"""Largest width of a layer that can be asked for."""

SHARED, PRIVATE = "shared", "private"
"""Whether clients of one architecture begin with the same weights."""

FAMILY_DIM = 512
"""Common representation length of clients whose backbones differ in width (FedRE)."""


def members_of(name: str) -> tuple[str, ...]:
    """Return the architectures that a model name stands for, in client order.

    Args:
        name: an architecture, a family, or architectures separated by commas.

    Raises:
        ConfigError: unknown names, all of them.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    names = tuple(part.strip() for part in name.split(","))
    usable = [entry.name for entry in architectures.entries()]
    problems = [
        unknown_name("architecture", part, [*usable, *FAMILIES])
        for part in names
        if part not in usable
    ]
    if problems:
        raise ConfigError(*problems)
    return names


def architecture_of(name: str, client: int) -> str:
    """Return the architecture of one client: entry `client` modulo the number of entries.

    Raises:
        ConfigError: unknown names, all of them.
    """
    names = members_of(name)
    return names[client % len(names)]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which models the clients run.

    Raises:
        ConfigError: an unknown name, or a setting that none of the architectures has.
    """

    name: str = knob(
        "cnn4",
        help="architecture, family (het10, cnn5, resnets, high-het) or comma list; "
        "client k runs entry k modulo their number",
    )
    mapping: str = knob(
        "ap",
        help="how features become representations: average pooling, max pooling, trained layer",
        choices=tuple(MAPPINGS),
    )
    dim: int | None = knob(
        None,
        help="representation length shared by all clients; none: the width of the backbones "
        f"where they agree, else {FAMILY_DIM}",
        ge=1,
        le=MOST_UNITS,
    )
    width: int | None = knob(
        None,
        help="units of the last layer before the head of cnn-1 to cnn-5; none: as published "
        "(500, or 50 for 1x28x28 images)",
        ge=1,
        le=MOST_UNITS,
    )
    stem: str | None = knob(
        None,
        help="first layers of the ResNets; none: as published (imagenet)",
        choices=STEMS,
    )
    norm: str = knob(
        "bn",
        help="normalisation: bn (BatchNorm, as published) or gn (GroupNorm in its place, which "
        "keeps the samples of a batch apart; dp-sgd needs it)",
        choices=NORMS,
    )
    init: str = knob(
        SHARED,
        help="initial weights: shared by all clients of one architecture, or drawn by each client "
        "from a secret of its own (private)",
        choices=(SHARED, PRIVATE),
        later=True,
    )

    weights: str = knob(
        "default",
        help="initial weights of convolutions and linear layers: as torch and torchvision draw "
        "them, or from Kaiming's normal law",
        choices=("default", "kaiming"),
        later=True,
    )

    def __post_init__(self) -> None:
        names = members_of(self.name)
        declared = {setting for name in names for setting in _settings_of(name)}
        problems = [
            f"'model.{key}' is {value}, but {self.name} has no such setting. "
            f"Leave it out, or choose another model.name."
            for key, value in self.overrides().items()
            if key not in declared
        ]
        if problems:
            raise ConfigError(*problems)

    def overrides(self) -> dict[str, int | str]:
        """Return the settings given for the architectures themselves."""
        given = {"width": self.width, "stem": self.stem}
        return {key: value for key, value in given.items() if value is not None}

    def architecture(self, client: int) -> Architecture:
        """Return the architecture of one client with these settings."""
        name = architecture_of(self.name, client)
        declared = _settings_of(name)
        values = {key: value for key, value in self.overrides().items() if key in declared}
        return architectures.get(name)(**values)


def _settings_of(name: str) -> set[str]:
    return {setting.name for setting in knobs(architectures.get(name))}


@cache
def _native_dim(architecture: Architecture, channels: int, height: int, width: int) -> int:
    with torch.device("meta"):
        return architecture.build((channels, height, width))[1]


def representation_dim(settings: ModelSettings, image_shape: tuple[int, int, int]) -> int:
    """Return the representation length d that all clients share.

    Raises:
        IncompatibleError: an architecture does not take such images.
    """
    if settings.dim is not None:
        return settings.dim
    widths = {
        _native_dim(settings.architecture(client), *image_shape)
        for client in range(len(members_of(settings.name)))
    }
    return widths.pop() if len(widths) == 1 else FAMILY_DIM


def assemble(
    architecture: Architecture,
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    mapping: str = "ap",
    dim: int | None = None,
    norm: str = "bn",
) -> SplitModel:
    """Build a model around one architecture, e.g. FedMRL's small model ``Cnn5(width=128)``.

    Args:
        dim: representation length; none: the backbone's own width.

    Raises:
        ConfigError: unknown mapping.
        IncompatibleError: the architecture does not take such images.
    """
    backbone, native = architecture.build(image_shape)
    backbone = with_norm(backbone, norm)
    dim = native if dim is None else dim
    model = SplitModel(
        backbone, build_mapping(mapping, native, dim), dim=dim, num_classes=num_classes
    )
    if not model.head.weight.is_meta:
        tried = (type(architecture), repr(architecture), tuple(image_shape), norm)
        if tried not in _NEED_COPY:
            _NEED_COPY[tried] = needs_copy(model.extractor, image_shape)
        if _NEED_COPY[tried]:
            give_copy(model.extractor)
    return model


def build_model(
    settings: ModelSettings, client: int, image_shape: tuple[int, int, int], num_classes: int
) -> SplitModel:
    """Build the model of one client, randomly initialised, on torch's default device.

    Initialisation draws from torch's global generator. Seed it with `core.rng.seeded` under a key
    that does not name the client, and clients of one architecture start equal, as in the public
    reference libraries; heads of different architectures still differ until the server sends one.

    Raises:
        ConfigError: unknown mapping.
        IncompatibleError: the architecture does not take such images.
    """
    model = assemble(
        settings.architecture(client),
        image_shape,
        num_classes,
        mapping=settings.mapping,
        dim=representation_dim(settings, image_shape),
        norm=settings.norm,
    )
    if settings.weights == "kaiming":
        model.apply(_kaiming_init)
    return model


def _kaiming_init(module: nn.Module) -> None:
    """Draw the weights of a layer anew; He et al., Delving deep into rectifiers, ICCV 2015."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


def has_batch_norm(
    settings: ModelSettings, client: int, image_shape: tuple[int, int, int], num_classes: int
) -> bool:
    """Whether a client's model normalises over batches, which needs two samples or more."""
    with torch.device("meta"):
        model = build_model(settings, client, image_shape, num_classes)
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def count_parameters(
    name: str,
    image_shape: tuple[int, int, int],
    num_classes: int,
    dim: int | None = None,
    mapping: str = "ap",
    *,
    client: int = 0,
) -> dict[str, int]:
    """Count the parameters of a model without allocating it.

    Args:
        name: architecture, family or comma list; `client` picks the entry.

    Returns:
        ``base`` (extractor with its mapping), ``head`` and ``total``, in scalars.

    Raises:
        ConfigError: unknown name or mapping.
        IncompatibleError: the architecture does not take such images.
    """
    settings = ModelSettings(name=name, mapping=mapping, dim=dim)
    with torch.device("meta"):
        model = build_model(settings, client, image_shape, num_classes)
    base, head = num_parameters(model.extractor), num_parameters(model.head)
    return {"base": base, "head": head, "total": base + head}
