"""Image files below a folder or inside a .zip, read through one door."""

from __future__ import annotations

import io
import os
import stat
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..core.errors import DamagedInputError, IncompatibleError
from ..core.units import first_few, plural
from .base import resize
from .mapped import copy_images, empty_images

SUFFIXES = (
    ".apng", ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm",
    ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
LEAST_SIDE, USUAL_SIDE = 4, 32
"""Sides (pixels) between which one is proposed for images of several sizes."""

ORIENTATION = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns an image upright, by the orientation that its EXIF data name."""

UNREADABLE = (
    OSError,
    RuntimeError,  # an encrypted .zip
    SyntaxError,  # PIL's word for a broken PNG
    ValueError,
    zlib.error,
    zipfile.BadZipFile,
    Image.DecompressionBombError,
)
"""What reading a file and decoding it may raise."""

TURNED = "turned upright, as the EXIF orientation says: {}"
TRANSPARENT = "partly transparent, and read without transparency (alpha is left out): {}"
FRAMES = "several frames in one file, of which the first was read: {}"
DEEP = "16 bits a channel, of which the upper 8 were read: {}"


@dataclass(frozen=True)
class Tree:
    """The files below a root.

    Args:
        root: the folder or .zip file.
        names: paths relative to the root with ``/`` between, sorted; hidden files left out.
        read: returns the bytes of one of them.
        folders: paths of folders, sorted; hidden ones left out.
        notes: what was left out, a sentence each.
        outside: files and folders elsewhere that links lead to.
    """

    root: Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]
    folders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    outside: tuple[Path, ...] = ()


@contextmanager
def open_tree(path: Path) -> Iterator[Tree]:
    """List a folder or a .zip file and read from it inside a ``with`` block.

    Linked folders and files on disk are followed; each folder is listed once, under its own path
    where it has one below the root. Links inside a .zip are never followed. The list is made once:
    asking a zip for one folder's content scans all of its names.

    Raises:
        DamagedInputError: a file that is not a readable .zip, a folder that cannot be listed.
    """
    if path.is_dir():
        yield list_files(path)
        return
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DamagedInputError(
            f"{path} is not a readable .zip file ({error}). Needed: a folder or a whole .zip."
        ) from None
    with archive:
        kept, links = [], 0
        for entry in archive.infolist():
            link = stat.S_ISLNK(entry.external_attr >> 16)
            links += link
            kept += [] if link else [entry.filename]
        own = _forward(kept)
        folders = {at for name in own for at in PurePosixPath(f"{name}x").parents}
        note = f"Links inside the .zip are not followed: {plural(links, 'link')}."
        yield Tree(
            path,
            _visible([name for name in own if not name.endswith("/")]),
            lambda name: archive.read(own[name]),
            _visible([str(at) for at in folders if at.name]),
            (note,) if links else (),
        )


def _forward(names: Sequence[str]) -> dict[str, str]:
    """Names with ``/`` between, where an archive of Windows has backslashes only."""
    turn = not any("/" in name for name in names)
    return {name.replace("\\", "/") if turn else name: name for name in names}


@dataclass
class _Walk:
    """What was found below a root, each folder under one path.

    Args:
        seen: (device, inode) of folders that are not entered (again).
    """

    root: Path
    seen: set[tuple[int, int]]
    names: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    nowhere: list[str] = field(default_factory=list)
    outside: list[Path] = field(default_factory=list)

    def enter(self, name: str) -> None:
        """List a folder and what is below it; links to folders are kept for later."""
        place = self.root / name
        if (key := _key(place)) in self.seen:
            self.again.append(name)
            return
        self.seen.add(key)
        self.folders.append(name)
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            raise DamagedInputError(
                f"The folder {place} cannot be listed ({error.strerror}).",
                next_step="Make it readable, or move it away.",
            ) from None
        for entry in entries:
            inside = f"{name}/{entry.name}" if name else entry.name
            if _is_hidden(inside):
                continue
            if entry.is_dir(follow_symlinks=False):
                self.enter(inside)
            elif os.path.isdir(entry.path):
                self.links.append(inside)
            elif os.path.isfile(entry.path):
                self.names.append(inside)
                self.outside += [Path(entry.path).resolve()] if entry.is_symlink() else []
            else:
                self.nowhere.append(inside)


def _key(folder: Path) -> tuple[int, int]:
    known = folder.stat()
    return known.st_dev, known.st_ino


def list_files(root: Path) -> Tree:
    """List a folder and the folders that are linked below it, without going round in circles.

    Raises:
        DamagedInputError: a folder cannot be listed.
    """
    walk = _Walk(root, {_key(above) for above in root.resolve().parents})
    walk.enter("")
    while walk.links:
        link = walk.links.pop(0)
        walk.enter(link)
        walk.outside.append((root / link).resolve())
    notes = []
    if walk.again:
        some = _some([f"{name} -> {os.path.realpath(root / name)}" for name in walk.again])
        notes.append(f"Links to folders that are read already, or lie above, left out: {some}.")
    if walk.nowhere:
        notes.append(
            f"No files (links that lead nowhere, devices), left out: {_some(walk.nowhere)}."
        )
    return Tree(
        root,
        _visible(walk.names),
        lambda name: (root / name).read_bytes(),
        _visible(walk.folders[1:]),
        tuple(notes),
        tuple(walk.outside),
    )


def with_links(sources: Sequence[Path]) -> tuple[Path, ...]:
    """Files and folders, and those that links below them lead to."""
    found = [at for path in sources if path.is_dir() for at in list_files(path).outside]
    return (*sources, *found)


def _some(names: Sequence[str]) -> str:
    """How many there are, and the first of them."""
    return f"{len(names)} ({first_few(names, 3)})"


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _visible(names: Iterator[str] | Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if not _is_hidden(name)))


def is_image(name: str) -> bool:
    """Say whether a file name has the ending of an image format."""
    return name.lower().endswith(SUFFIXES)


def decode(content: bytes) -> tuple[Tensor, tuple[str, ...]]:
    """Decode an image file to uint8 (1, H, W) if it is grey, else (3, H, W), turned upright.

    Returns:
        The image, and the patterns of the notes that fit it: `TURNED` and its kin.

    Raises:
        IncompatibleError: a single channel of more than 8 bits.
        Exception: whatever the decoder of a damaged file raises.
    """
    with Image.open(io.BytesIO(content)) as image:
        if image.mode.startswith(("I", "F")):
            raise IncompatibleError(f"has more than 8 bits a channel (mode {image.mode})")
        deep = any(";16" in str(tile) for tile in image.tile)
        image.load()
        turn = UPRIGHT.get(_image_metadata(_orientation, image) or 1)
        upright = image if turn is None else image.transpose(turn)
        grey = image.mode in ("1", "L", "LA")
        pixels = np.array(upright.convert("L" if grey else "RGB"))
        fits = {
            TURNED: turn is not None,
            TRANSPARENT: _image_metadata(_transparent, image),
            FRAMES: _image_metadata(_several, image),
            DEEP: deep,
        }
    shown = pixels[None] if grey else pixels.transpose(2, 0, 1).copy()
    return torch.from_numpy(shown), tuple(note for note, holds in fits.items() if holds)


def _image_metadata(ask: Callable[[Image.Image], int], image: Image.Image) -> int:
    """What an image says beside its pixels; damage there takes nothing from them."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ask(image)
    except Exception:  # a decoder may fail on strange content in any way
        return 0


def _orientation(image: Image.Image) -> int:
    return int(image.getexif().get(ORIENTATION, 1))


def _transparent(image: Image.Image) -> bool:
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return False
    return bool(np.asarray(image.convert("RGBA"))[..., 3].min() < 255)


def _several(image: Image.Image) -> bool:
    # the second picture of a photograph (MPO) is a preview
    return image.format != "MPO" and getattr(image, "n_frames", 1) > 1


def decode_all(tree: Tree, names: Sequence[str], size: int | None) -> tuple[Tensor, list[str]]:
    """Decode images to uint8 (N, C, H, W); grey only when all of them are.

    Args:
        size: side to resize to (pixels); None keeps the native size, then equal for all.

    Returns:
        The images, and a note on each thing that was changed, with how many it concerns.

    Raises:
        DamagedInputError: one cannot be read.
        IncompatibleError: native sizes differ, or more than 8 bits a channel.
    """
    out = torch.empty(0, dtype=torch.uint8)
    counts: Counter[str] = Counter()
    for row, name in enumerate(names):
        image, found = _decode_image(tree, name)
        counts.update(found)
        if size is not None:
            image = resize(image, size)
        if row == 0:
            out = empty_images(len(names), tuple(image.shape))
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
            out = copy_images(out, channels=3)
        out[row] = image
    notes = [pattern.format(plural(count, "image")) for pattern, count in sorted(counts.items())]
    return out, [f"{note[0].upper()}{note[1:]}." for note in notes]


def _decode_image(tree: Tree, name: str) -> tuple[Tensor, tuple[str, ...]]:
    try:
        content = tree.read(name)
        if not content:
            raise ValueError("it is empty")
        return decode(content)
    except IncompatibleError as error:
        raise IncompatibleError(
            f"{name} in {tree.root} {error}. Needed: 8-bit grey or colour images.",
            next_step="Convert the files to 8 bits, or save the images as a .npz file of "
            "floats in [0, 1] and use --dataset npz.",
        ) from None
    except UNREADABLE as error:
        raise DamagedInputError(
            f"{name} in {tree.root} cannot be read as an image ({error}).",
            next_step="Replace or remove that file.",
        ) from None
