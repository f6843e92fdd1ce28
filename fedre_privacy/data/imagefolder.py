"""Images from a folder, or a .zip file, with one sub-folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..core.config import knob
from ..core.errors import IncompatibleError
from .base import Dataset, ImageData, datasets, existing
from .files import Tree, decode_all, is_image, open_tree

LAYOUT = "root/<class>/<image>, or root/train/<class>/<image> with root/test or root/val beside it"


@datasets.register("imagefolder")
@dataclass(frozen=True, kw_only=True)
class ImageFolder(Dataset):
    """Load images from a folder, or a .zip file, with one sub-folder per class.

    Layout: root/<class>/<image>, or root/train/<class>/<image> and root/test/<class>/<image>
    (root/val where there is no root/test). Classes are sorted by name, images by file name.
    Grey when all images are grey, else RGB. With `per_class` no more images are decoded than
    kept.

    Raises:
        DamagedInputError: an image cannot be read.
        IncompatibleError: another layout, sizes that differ, a test class without training images.
    """

    path: str | None = knob(None, help="the folder, or a .zip file of it")
    size: int | None = knob(
        None, help="side to resize to; none keeps the native size", unit="pixels", ge=4
    )

    def load(self) -> ImageData:
        with open_tree(existing(self.path, self.name, "a folder or .zip of images")) as tree:
            train, test, note = _parts(tree)
            classes = sorted(train)
            rows = [
                (name, number)
                for part in (train, test)
                for number, label in enumerate(classes)
                for name in part.get(label, [])[: self.per_class]
            ]
            return ImageData(
                name=self.name,
                images=decode_all(tree, [name for name, _ in rows], self.size),
                labels=torch.tensor([number for _, number in rows]),
                classes=tuple(classes),
                num_train=sum(len(own[: self.per_class]) for own in train.values()),
                notes=note,
            )


Part = dict[str, list[str]]


def _parts(tree: Tree) -> tuple[Part, Part, tuple[str, ...]]:
    """Return the image names of each class of the training and the test part, and any note."""
    prefix, names = "", [name for name in tree.names if is_image(name)]
    while not {"train", "test", "val"} & (tops := {name.split("/")[0] for name in names}):
        if len(tops) != 1 or any(name.count("/") < 2 for name in names):
            break
        prefix += f"{tops.pop()}/"  # one folder around everything, as most archives have
        names = [name.split("/", 1)[1] for name in names]
    note: tuple[str, ...] = ()
    if "train" in tops:
        held_out = "test" if "test" in tops else "val"
        train = _classes(names, prefix, "train/")
        test = _classes(names, prefix, f"{held_out}/")
        if {"test", "val"} <= tops:
            note = (f"{tree.root.name} has test/ and val/; val/ was not used.",)
    else:
        flat = not tops or not tops <= {"test", "val"}
        train, test = _classes(names, prefix, "") if flat else {}, {}
    _check(tree, train, test)
    return train, test, note


def _classes(names: Sequence[str], prefix: str, part: str) -> Part:
    out: Part = {}
    for name in names:
        inside = name.removeprefix(part)
        if name.startswith(part) and "/" in inside:
            out.setdefault(inside.split("/")[0], []).append(prefix + name)
    return out


def _check(tree: Tree, train: Part, test: Part) -> None:
    if not train:
        some = ", ".join(tree.names[:3]) or "no files"
        raise IncompatibleError(
            f"{tree.root} has no class folders with images; it holds {some}. Needed: {LAYOUT}."
        )
    extra = sorted(set(test) - set(train))
    if extra:
        hint = "For the official Tiny ImageNet folder use --dataset tinyimagenet."
        raise IncompatibleError(
            f"{tree.root} has test classes without training images: {', '.join(extra[:5])}. "
            "Needed: the same class folders in both parts.",
            next_step=hint if extra == ["images"] else "Move or remove those folders.",
        )
