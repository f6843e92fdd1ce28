"""Which client runs which architecture, and building one client's model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from ..core.config import knob, knobs
from ..core.errors import ConfigError, unknown_name
from .adapters import ADAPTERS, AUTO, RANK, AdapterForm, adapted_backbone
from .frozen_backbone import FrozenBackbone
from .mapping import MAPPINGS, build_mapping
from .norm import NORMS, with_norm
from .probe import give_copy, needs_copy
from .split import SplitModel
from .weights import HASHED, with_hash
from .zoo import Architecture, architectures
from .zoo.published import LARGEST_SIDE, PublishedBackbone, shared_backbone
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

ALL, PROJECTION, ADAPTER, HEAD = "all", "projection", "adapter", "head"
TRAINABLE = (ALL, PROJECTION, ADAPTER, HEAD)
"""What clients train: everything; a linear layer from the features of a frozen backbone to
representations, and the head; adapters inside a frozen backbone, and the head; the head alone."""

SHARED, PRIVATE = "shared", "private"
"""Whether clients of one architecture begin with the same weights."""

OF_ARCHITECTURES = ("width", "stem", "size", "checkpoint", "depth", "grid")
"""Settings that architectures may declare; each goes to those of a federation that do."""

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
        if part.partition(":")[0] not in usable
    ]
    for part in names if not problems else ():
        kind = architectures.get(part)
        if kind.parametric and not kind.argument:
            problems.append(f"Architecture '{part}' is given as {part}:NAME, {kind.parametric}.")
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
        f"where they agree, else {FAMILY_DIM}; with trainable=projection always {FAMILY_DIM}",
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
    trainable: str = knob(
        ALL,
        help="what clients train: all; or, where the backbone has published weights, which then "
        "stay as they are (BatchNorm too), a linear projection of its features and the head, small "
        "adapters inside it and the head, or the head alone",
        choices=TRAINABLE,
        later=True,
    )
    adapter: str = knob(
        AUTO,
        help="adapters of trainable=adapter: changes of linear layers of low rank (lora), or "
        "residual bottlenecks behind blocks of convolutions; auto: lora where linear layers see "
        "tokens",
        choices=ADAPTERS,
        later=True,
    )
    rank: int | None = knob(
        None,
        help="rank of low-rank adapters, channels inside bottlenecks, at most the width of the "
        f"layer; none: {RANK}",
        ge=1,
        le=MOST_UNITS,
        later=True,
    )
    alpha: float | None = knob(
        None, help="low-rank adapters count alpha / rank; none: twice the rank", gt=0, later=True
    )
    size: int | None = knob(
        None,
        help="height and width to which images are brought inside backbones with published "
        "weights; none: as published",
        unit="pixels",
        ge=32,
        le=LARGEST_SIDE,
        later=True,
    )
    checkpoint: str | None = knob(
        None,
        help="file of the weights of timm:NAME or torchvision:NAME, safetensors or tensors saved "
        "by torch.save; the SHA-256 of what it holds is kept behind a #",
        later=True,
    )

    depth: int | None = knob(
        None,
        help="blocks of a frozen efficientnet-lite behind which representations are taken; none: "
        "all, and the last convolution",
        ge=0,
        later=True,
    )
    grid: int | None = knob(
        None,
        help="cells in each direction that the maps of a frozen efficientnet-lite are averaged in; "
        "none: one, the mean of everything",
        ge=1,
        later=True,
    )

    def __post_init__(self) -> None:
        names = members_of(self.name)
        declared = {setting for name in names for setting in _settings_of(name)}
        problems = self._not_trainable(names) + [
            f"'model.{key}' is {value}, but {self.name} has no such setting. "
            f"Leave it out, or choose another model.name."
            for key, value in self.overrides().items()
            if key not in declared
        ]
        if problems:
            raise ConfigError(*problems)
        if self.checkpoint is not None and not HASHED.fullmatch(self.checkpoint):
            object.__setattr__(self, "checkpoint", with_hash(self.checkpoint))

    def _not_trainable(self, names: tuple[str, ...]) -> list[str]:
        """Where published weights are asked for what they cannot do, or are absent."""
        kinds = {name: architectures.get(name) for name in names}
        drawn = [name for name, kind in kinds.items() if not kind.pretrained]
        if self.trainable != ALL and drawn:
            return [
                f"'model.trainable' is {self.trainable}, and the backbone of {', '.join(drawn)} "
                "begins at random: frozen, it would stay so. Use a backbone with published "
                "weights, for example --models efficientnet-lite0, or trainable=all."
            ]
        problems = []
        early = [key for key in ("depth", "grid") if getattr(self, key) is not None]
        if self.trainable == ALL and early:
            problems.append(
                f"'model.{early[0]}' is for a frozen backbone. Use model.trainable=head or "
                "model.trainable=projection."
            )
        if self.trainable == PROJECTION and self.mapping == "mp":
            problems.append("'model.mapping' is mp, and trainable=projection has a trained layer.")
        if self.trainable == HEAD and self.mapping == "fc":
            problems.append(
                "'model.mapping' is fc, a trained layer, and with trainable=head the head alone is "
                "trained. Use model.trainable=projection."
            )
        if self.trainable != ADAPTER:
            given = {"adapter": self.adapter != AUTO, "rank": self.rank, "alpha": self.alpha}
            problems += [
                f"'model.{key}' is {getattr(self, key)}, and no adapter is trained. Use "
                "model.trainable=adapter."
                for key, value in given.items()
                if value
            ]
        for key, kept in (("norm", "bn"), ("weights", "default")):
            if getattr(self, key) != kept and len(drawn) < len(kinds):
                problems.append(
                    f"'model.{key}' is {getattr(self, key)}, which published weights do not "
                    f"survive. Leave it out."
                )
        return problems

    def overrides(self) -> dict[str, int | str]:
        """Return the settings given for the architectures themselves."""
        given = {name: getattr(self, name) for name in OF_ARCHITECTURES}
        return {key: value for key, value in given.items() if value is not None}

    def adapters(self) -> AdapterForm:
        """Return which adapters are trained where adapters are."""
        rank = RANK if self.rank is None else self.rank
        alpha = 2.0 * rank if self.alpha is None else self.alpha
        return AdapterForm(kind=self.adapter, rank=rank, alpha=alpha)

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
    if settings.trainable == PROJECTION:
        return FAMILY_DIM
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
    trainable: str = ALL,
    adapters: AdapterForm | None = None,
) -> SplitModel:
    """Build a model around one architecture, e.g. FedMRL's small model ``Cnn5(width=128)``.

    Args:
        dim: representation length; none: the backbone's own width.
        trainable: one of `TRAINABLE`.
        adapters: those that are trained, if so; none: as by default.

    Raises:
        ConfigError: unknown mapping.
        IncompatibleError: the architecture does not take such images, or such adapters.
    """
    form = (adapters or AdapterForm()) if trainable == ADAPTER else None
    backbone, native, preprocess = _backbone_of(architecture, image_shape, trainable, form)
    backbone = with_norm(backbone, norm)
    dim = native if dim is None else dim
    model = SplitModel(
        backbone,
        build_mapping("fc" if trainable == PROJECTION else mapping, native, dim),
        dim=dim,
        num_classes=num_classes,
        normalise=preprocess,
    )
    if not model.head.weight.is_meta:
        tried = (type(architecture), repr(architecture), tuple(image_shape), norm, trainable, form)
        if tried not in _NEED_COPY:
            _NEED_COPY[tried] = needs_copy(model.extractor, image_shape)
        if _NEED_COPY[tried]:
            give_copy(model.extractor)
    return model


def _backbone_of(
    architecture: Architecture,
    image_shape: tuple[int, int, int],
    trainable: str,
    form: AdapterForm | None,
) -> tuple[nn.Module, int, nn.Module]:
    """A backbone, the length of its features, and what brings images to its input.

    A frozen one is the same for all models, and brings images to its input itself.
    """
    if trainable == ALL:
        return *architecture.build(image_shape), architecture.preprocess(image_shape)
    assert isinstance(architecture, PublishedBackbone)
    if form is not None:
        adapted = adapted_backbone(architecture, image_shape, form)
        return *adapted, architecture.preprocess(image_shape)
    shared = shared_backbone(architecture, tuple(image_shape))
    return FrozenBackbone(shared), shared.length, nn.Identity()


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
        trainable=settings.trainable,
        adapters=settings.adapters() if settings.trainable == ADAPTER else None,
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
