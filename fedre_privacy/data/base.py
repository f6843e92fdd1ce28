"""What a data set is, and the checks and conversions that all of them share."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ..core.config import knob
from ..core.errors import IncompatibleError, MissingInputError
from ..core.files import tensor_sha256
from ..core.registry import Registry
from ..core.units import plural

BUILT_IN = "Works now, without any file: --dataset digits or --dataset photos."
"""Last sentence of every message about an absent data set."""


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """Labelled images in memory, original training rows first.

    Args:
        name: the data set's registered name.
        images: uint8 (N, C, H, W), values 0..255.
        labels: int64 (N,), values 0..num_classes-1.
        classes: class names; label i means ``classes[i]``.
        num_train: rows below it come from the original training set, the rest from the original
            test set.
        notes: facts that belong beside every number computed from these images.

    Raises:
        IncompatibleError: a wrong type, shape or range.
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    num_train: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            problems.append(
                f"images are {self.images.dtype} {tuple(self.images.shape)}; "
                "torch.uint8 (N, C, H, W) is needed"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            problems.append(
                f"labels are {self.labels.dtype} {tuple(self.labels.shape)}; "
                f"torch.int64 ({len(self.images)},) is needed"
            )
        if len(self.images) == 0:
            problems.append("there are no images")
        elif len(self.labels) and not (
            0 <= int(self.labels.min()) and int(self.labels.max()) < len(self.classes)
        ):
            problems.append(
                f"labels span {int(self.labels.min())}..{int(self.labels.max())}; "
                f"0..{len(self.classes) - 1} is needed for {len(self.classes)} class names"
            )
        if not 0 <= self.num_train <= len(self.images):
            problems.append(f"num_train is {self.num_train}; 0..{len(self.images)} is needed")
        if problems:
            raise IncompatibleError(*(f"Data set '{self.name}': {text}." for text in problems))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hex) of the bytes of images and labels, in order."""
        return tensor_sha256(self.images, self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """Number of class names."""
        return len(self.classes)

    def floats(self, index: Tensor) -> Tensor:
        """Return the images at `index` (n,) as float32 (n, C, H, W) in [0, 1]."""
        return self.images[index].float() / 255

    def __len__(self) -> int:
        return len(self.images)

    def summary(self) -> str:
        """The data in words: how many images of which size, classes, parts, notes."""
        shape = "x".join(str(side) for side in self.image_shape)
        notes = f", {plural(len(self.notes), 'note')}" if self.notes else ""
        classes = "1 class" if self.num_classes == 1 else f"{self.num_classes} classes"
        return (
            f"{len(self)} images {shape}, {classes}, "
            f"{self.num_train} original training + {len(self) - self.num_train} test{notes}"
        )

    def __repr__(self) -> str:
        return f"ImageData('{self.name}': {self.summary()})"


datasets: Registry[Dataset] = Registry("data set", "fedre_privacy.data", see="fedre-train --help")


@datasets.base
@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """Base of all data sets: settings, and `load`.

    A data set is a frozen, keyword-only dataclass registered with ``datasets.register(name)``.
    """

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another data set: a clause of at most 100 characters."""
    also: ClassVar[tuple[str, ...]] = ()
    """What else the field calls it: whoever gives such a word is told the name."""

    per_class: int | None = knob(
        None,
        help="keep at most this many images of each class, taken in order, from the original "
        "training set and as many from the original test set; none keeps all",
        unit="images",
        ge=1,
    )

    @abstractmethod
    def load(self) -> ImageData:
        """Read the images; the same settings give the same bytes.

        Raises:
            MissingInputError: the files are not there.
            DamagedInputError: a file cannot be read.
            IncompatibleError: the content is not what this data set expects.
        """

    def sources(self) -> tuple[Path, ...]:
        """Files and folders that the images are read from; no attack may open them."""
        given = getattr(self, "path", None)
        return (at_hand(str(given)).resolve(),) if given else ()


def keep_per_class(data: ImageData, per_class: int | None) -> ImageData:
    """Keep the first `per_class` images (None: all) of each class and part, in their order."""
    if per_class is None:
        return data
    part = (torch.arange(len(data)) >= data.num_train).long()
    group = part * data.num_classes + data.labels
    order = group.argsort(stable=True)
    sizes = torch.bincount(group, minlength=2 * data.num_classes)
    starts = sizes.cumsum(0) - sizes
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(data)) - starts[group[order]]
    kept = (rank < per_class).nonzero().squeeze(1)
    return replace(
        data,
        images=data.images[kept],
        labels=data.labels[kept],
        num_train=int((kept < data.num_train).sum()),
    )


def resize(images: Tensor, size: int) -> Tensor:
    """Resize to size x size with torch's antialiased bilinear filter.

    An oblong image is first cut to the square at its centre. Computed in float64 and rounded, so
    that the bytes do not depend on the processor.

    Args:
        images: uint8 (..., C, H, W).

    Returns:
        uint8 (..., C, size, size); the input itself when it has this size already.
    """
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[..., top : top + side, left : left + side]
    resized = interpolate(
        square.double().reshape(-1, *square.shape[-3:]),
        size=(size, size),
        mode="bilinear",
        antialias=True,
    )
    found = resized.round().clamp(0, 255).to(torch.uint8)
    return found.reshape(*images.shape[:-2], size, size)


MOVED = "FEDRE_MOVED"
"""Environment variable of a job that was sent to this machine: JSON, given paths to paths here."""


def at_hand(given: str) -> Path:
    """Where the path that settings name lies on this machine."""
    moved = json.loads(os.environ.get(MOVED, "{}"))
    return Path(moved.get(given, given)).expanduser()


def existing_path(path: str | None, name: str, what: str) -> Path:
    """Return the path of a data set `name` that the user has to bring.

    Args:
        what: what it should be, e.g. ``"a .npz file"``.

    Raises:
        MissingInputError: no path given, or nothing there.
    """
    remedy = f"Give its place with --data-dir DIR. {BUILT_IN}"
    if path is None:
        raise MissingInputError(
            f"Data set '{name}' needs {what}, and no path was given.", next_step=remedy
        )
    found = at_hand(path)
    if not found.exists():
        raise MissingInputError(
            f"Data set '{name}' needs {what}; there is nothing at {found}.", next_step=remedy
        )
    return found
