"""Tiny ImageNet in its official layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.config import knob
from ..core.errors import DamagedInputError, IncompatibleError
from .base import Dataset, ImageData, datasets, existing_path
from .files import Tree, decode_all, is_image, open_tree, with_links

ANNOTATIONS = "val/val_annotations.txt"


@datasets.register("tinyimagenet")
@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Dataset):
    """Load Tiny ImageNet from its folder or .zip: training images, then validation images.

    Classes are the sorted WordNet ids; training images follow by class and file name, validation
    images by file name. The unlabelled test images are not read.

    The generators behind several published results read ``val/`` with a loader that takes
    folders for classes; it holds the one folder ``images``, so that all validation images got
    label 0. `val_as_class0` reproduces this, for replication only, and leaves a note in the
    data. `per_class` counts true classes under either setting, so both load the same images.

    Reference: Y. Le and X. Yang, Tiny ImageNet visual recognition challenge, 2015.
    Raises:
        DamagedInputError: a validation image without a label, or an unreadable image.
        IncompatibleError: not the official layout.
    """

    when_to_use = "64-pixel images of 200 classes, to compare with papers"
    also = ("tiny-imagenet-200", "imagenet")

    path: str | None = knob(None, help="the folder tiny-imagenet-200, or a .zip file of it")
    size: int = knob(
        64, help="side of the images; the originals have 64", unit="pixels", ge=4, le=1024
    )
    val_as_class0: bool = knob(
        False, help="give every validation image label 0, as in the published experiments"
    )

    def sources(self) -> tuple[Path, ...]:
        return with_links(super().sources())

    def load(self) -> ImageData:
        with open_tree(
            existing_path(self.path, self.name, "the Tiny ImageNet folder or .zip")
        ) as tree:
            train, val = _by_class(tree)
            classes = sorted(train)
            first = [(n, i) for i, c in enumerate(classes) for n in train[c][: self.per_class]]
            rest = sorted((n, i) for i, c in enumerate(classes) for n in val[c][: self.per_class])
            labels = torch.tensor([label for _, label in first + rest])
            notes: tuple[str, ...] = ()
            if self.val_as_class0:
                held_out = labels[len(first) :]
                wrong = int((held_out != 0).sum())
                held_out.zero_()
                notes = (
                    f"All {len(rest)} validation images carry label 0 ({classes[0]}), {wrong} of "
                    "them wrongly, as in the published experiments (val_as_class0).",
                )
            images, changed = decode_all(tree, [name for name, _ in first + rest], self.size)
            return ImageData(
                name=self.name,
                images=images,
                labels=labels,
                classes=tuple(classes),
                num_train=len(first),
                notes=(*notes, *tree.notes, *changed),
            )


def _by_class(tree: Tree) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the names of the training and of the validation images of each class."""
    anchors = [n for n in tree.names if n == ANNOTATIONS or n.endswith(f"/{ANNOTATIONS}")]
    top = min(anchors, key=len).removesuffix(ANNOTATIONS) if anchors else ""
    train: dict[str, list[str]] = {}
    for name in tree.names:
        inside = name.removeprefix(f"{top}train/")
        if name.startswith(f"{top}train/") and is_image(name) and "/" in inside:
            train.setdefault(inside.split("/")[0], []).append(name)
    if not anchors or not train:
        absent = "training images" if anchors else ANNOTATIONS
        raise IncompatibleError(
            f"{tree.root} lacks {absent}. Needed: the official layout, train/<wnid>/images/*.JPEG, "
            f"val/images/*.JPEG and {ANNOTATIONS}.",
            next_step="For images in other layouts use --dataset imagefolder.",
        )
    val: dict[str, list[str]] = {label: [] for label in train}
    truth = _annotations(tree, f"{top}{ANNOTATIONS}")
    for name in tree.names:
        if name.startswith(f"{top}val/") and is_image(name):
            label = truth.get(name.rsplit("/", 1)[-1])
            if label not in val:
                said = f"says '{label}', which has no training images" if label else "names none"
                raise DamagedInputError(
                    f"{tree.root}: no usable label for {name}; {ANNOTATIONS} {said}.",
                    next_step="Unpack or download the official file again.",
                )
            val[label].append(name)
    return train, val


def _annotations(tree: Tree, name: str) -> dict[str, str]:
    lines = tree.read(name).decode("utf-8", errors="replace").splitlines()
    return {row[0]: row[1] for line in lines if len(row := line.split("\t")) >= 2}
