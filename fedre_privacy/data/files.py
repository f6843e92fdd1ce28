"""Image files below a folder or inside a .zip, read through one door."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..core.errors import DamagedInputError, IncompatibleError
from .base import resize

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
LEAST_SIDE, USUAL_SIDE = 4, 32
"""Sides (pixels) between which one is proposed for images of several sizes."""


@dataclass(frozen=True)
class Tree:
    """The files below a root.

    Args:
        root: the folder or .zip file.
        names: paths relative to the root with ``/`` between, sorted; hidden files left out.
        read: returns the bytes of one of them.
    """

    root: Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]


@contextmanager
def open_tree(path: Path) -> Iterator[Tree]:
    """List a folder or a .zip file and read from it inside a ``with`` block.

    The list is made once: asking a zip for one folder's content scans all of its names.

    Raises:
        DamagedInputError: a file that is not a readable .zip.
    """
    if path.is_dir():
        found = [
            (Path(folder) / file).relative_to(path).as_posix()
            for folder, _, files in os.walk(path)
            for file in files
        ]
        yield Tree(path, _visible(found), lambda name: (path / name).read_bytes())
        return
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DamagedInputError(
            f"{path} is not a readable .zip file ({error}). Needed: a folder or a whole .zip."
        ) from None
    with archive:
        found = [name for name in archive.namelist() if not name.endswith("/")]
        yield Tree(path, _visible(found), archive.read)


def _visible(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        sorted(
            name
            for name in names
            if not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
        )
    )


def is_image(name: str) -> bool:
    """Say whether a file name has the ending of an image format."""
    return name.lower().endswith(SUFFIXES)


def decode(tree: Tree, name: str) -> Tensor:
    """Decode one image to uint8 (1, H, W) if it is grey, else (3, H, W).

    Raises:
        DamagedInputError: it cannot be read.
        IncompatibleError: more than 8 bits a channel.
    """
    try:
        with Image.open(io.BytesIO(tree.read(name))) as image:
            if image.mode.startswith(("I", "F")):
                raise IncompatibleError(
                    f"{name} in {tree.root} has more than 8 bits a channel (mode {image.mode}). "
                    "Needed: 8-bit grey or colour images.",
                    next_step="Convert the files to 8 bits, or save the images as a .npz file of "
                    "floats in [0, 1] and use --dataset npz.",
                )
            grey = image.mode in ("1", "L", "LA")
            pixels = np.array(image.convert("L" if grey else "RGB"))
    except (
        OSError,
        RuntimeError,  # an encrypted .zip
        SyntaxError,  # PIL's word for a broken PNG
        ValueError,
        zlib.error,
        zipfile.BadZipFile,
        Image.DecompressionBombError,
    ) as error:
        raise DamagedInputError(
            f"{name} in {tree.root} cannot be read as an image ({error}).",
            next_step="Replace or remove that file.",
        ) from None
    return torch.from_numpy(pixels[None] if grey else pixels.transpose(2, 0, 1).copy())


def decode_all(tree: Tree, names: Sequence[str], size: int | None) -> Tensor:
    """Decode images to uint8 (N, C, H, W); grey only when all of them are.

    Args:
        tree: where they are.
        names: which ones, in order; at least one.
        size: side to resize to (pixels); None keeps the native size, then equal for all.

    Raises:
        DamagedInputError: one cannot be read.
        IncompatibleError: native sizes differ, or more than 8 bits a channel.
    """
    out = torch.empty(0, dtype=torch.uint8)
    for row, name in enumerate(names):
        image = decode(tree, name)
        if size is not None:
            image = resize(image, size)
        if row == 0:
            out = image.new_empty((len(names), *image.shape))
        if image.shape[1:] != out.shape[2:]:
            sizes = (out.shape[2:], image.shape[1:])
            first, other = (f"{s[1]}x{s[0]}" for s in sizes)
            side = max(LEAST_SIDE, min(USUAL_SIDE, *sizes[0], *sizes[1]))
            raise IncompatibleError(
                f"{names[0]} is {first} pixels and {name} is {other} (width x height). Needed: "
                "one size for all.",
                next_step=f"Give --set data.size={side} (from Python size={side}): images are cut "
                "to the square at their centre and resized to it.",
            )
        if image.shape[0] > out.shape[1]:
            out = out.expand(-1, 3, -1, -1).clone()
        out[row] = image
    return out
