"""Images from a NumPy .npz file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from ..core import files
from ..core.config import knob
from ..core.errors import IncompatibleError
from .arrays import USUAL, absent_classes, as_labels, class_numbers, read_pixels
from .base import Dataset, ImageData, datasets, existing_path, keep_per_class

LAYOUTS = (("x_train", "y_train"), ("x", "y"), ("images", "labels"))
TEST = ("x_test", "y_test")
NEEDED = (
    "x_train and y_train (with x_test and y_test if there is a test part), x and y, or images "
    "and labels; class names in classes if wanted"
)


@datasets.register("npz")
@dataclass(frozen=True, kw_only=True)
class Npz(Dataset):
    """Load labelled images from one .npz file written by ``numpy.savez``.

    Keys: x_train and y_train, with x_test and y_test if there is a test part; or x and y; or
    images and labels. Optional: classes (C,), the class names. Images are (N, H, W),
    (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, uint8 or floats in [0, 1]; labels are
    integers. Labels that are sparse ids (0, 40000, 80000) become classes 0, 1, 2, with a note, and
    a note counts classes without images. Pickled content is never loaded.
    """

    when_to_use = "your own images as arrays in one file"
    also = ("numpy", "npy", "array", "arrays")

    path: str | None = knob(None, help="the .npz file")

    def load(self) -> ImageData:
        path = existing_path(self.path, self.name, "a .npz file")
        arrays = _read_arrays(path)
        pair = next((pair for pair in LAYOUTS if set(pair) <= set(arrays)), None)
        has_test = [key for key in TEST if key in arrays]
        if pair is None or len(has_test) == 1:
            raise IncompatibleError(
                f"{path} holds the keys {', '.join(sorted(arrays)) or 'none'}. Needed: {NEEDED}.",
                next_step="Save it again with numpy.savez and these names.",
            )
        parts = [pair, TEST] if has_test else [pair]
        images = [
            read_pixels(arrays[x], f"'{x}' of {path.name}", channels=USUAL).bytes()
            for x, _ in parts
        ]
        labels = [
            as_labels(arrays[y], f"'{y}' of {path.name}", count=len(found))
            for (_, y), found in zip(parts, images, strict=True)
        ]
        shapes = {tuple(found.shape[1:]) for found in images}
        if len(shapes) > 1:
            raise IncompatibleError(
                f"Images of {path.name} are {' and '.join(map(str, sorted(shapes)))} (C, H, W) in "
                "its training and test part. Needed: one shape."
            )
        every_label, classes, notes = _classes(arrays, torch.cat(labels), path)
        data = ImageData(
            name=self.name,
            images=torch.cat(images),
            labels=every_label,
            classes=classes,
            num_train=len(images[0]),
            notes=(*notes, *absent_classes(every_label, classes)),
        )
        return keep_per_class(data, self.per_class)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    if path.is_dir():
        raise IncompatibleError(
            f"{path} is a folder. Needed: a .npz file.",
            next_step="For a folder of images use --dataset imagefolder.",
        )
    if path.is_file() and path.suffix == ".npy":
        raise IncompatibleError(
            f"{path} is a single array (.npy). Needed: a .npz file with {NEEDED}."
        )
    return files.read_npz(path, {key for pair in LAYOUTS for key in pair} | {*TEST, "classes"})


def _classes(
    arrays: dict[str, npt.NDArray[Any]], labels: Tensor, path: Path
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Return labels 0..C-1, the names of the C classes, and notes."""
    if "classes" not in arrays:
        return class_numbers(labels)
    count = int(labels.max()) + 1
    names = tuple(str(name) for name in arrays["classes"].reshape(-1).astype(str))
    if len(names) < count:
        raise IncompatibleError(
            f"'classes' of {path.name} names {len(names)} classes and the labels go up to "
            f"{count - 1}. Needed: {count} names."
        )
    return labels, names, ()
