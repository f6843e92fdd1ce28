"""Images from a folder, or a .zip file: a sub-folder for each class, labels.csv, or one class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.config import knob
from .base import Dataset, ImageData, datasets, existing_path
from .files import decode_all, open_tree, with_links
from .folders import find_classes


@datasets.register("imagefolder")
@dataclass(frozen=True, kw_only=True)
class ImageFolder(Dataset):
    """Load images from a folder, or a .zip file, with one sub-folder per class.

    Layout: root/<class>/<image>, or root/train/<class>/<image> and root/test/<class>/<image>
    (root/val where there is no root/test; training, testing, valid and validation will do). Images
    without class folders take their labels from labels.csv among them, with the header
    ``file,label``; without it they are one class. Classes are sorted by name, images by file name.
    Grey when all images are grey, else RGB. Images are turned upright as their EXIF data say. A
    note counts whatever was left out or changed. Linked folders are followed on disk, once, and
    never in a .zip. With `per_class` no more images are decoded than kept.

    Raises:
        DamagedInputError: an image, a folder or labels.csv cannot be read.
        IncompatibleError: another layout, or one that can be read in two ways, sizes that differ, a
            test class without training images.
    """

    when_to_use = "your own images in folders or a .zip file"
    also = ("folder", "images", "image-folder", "directory", "zip", "own")

    path: str | None = knob(None, help="the folder, or a .zip file of it")
    size: int | None = knob(
        None, help="side to resize to; none keeps the native size", unit="pixels", ge=4
    )

    def sources(self) -> tuple[Path, ...]:
        return with_links(super().sources())

    def load(self) -> ImageData:
        with open_tree(existing_path(self.path, self.name, "a folder or .zip of images")) as tree:
            found = find_classes(tree)
            rows = [
                (name, number)
                for part in (found.train, found.test)
                for number, label in enumerate(found.classes)
                for name in part.get(label, [])[: self.per_class]
            ]
            images, changed = decode_all(tree, [name for name, _ in rows], self.size)
            return ImageData(
                name=self.name,
                images=images,
                labels=torch.tensor([number for _, number in rows]),
                classes=found.classes,
                num_train=sum(len(own[: self.per_class]) for own in found.train.values()),
                notes=(*found.notes, *changed),
            )
