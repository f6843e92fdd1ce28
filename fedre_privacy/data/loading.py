"""Images for a script, out of files: one tensor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import ConfigError, IncompatibleError, MissingInputError
from .base import resize
from .files import Tree, decode_all, is_image, open_tree
from .folders import other_endings
from .npz import Npz

Place = str | Path
GREY = (19595, 38470, 7471)
"""Weights of red, green and blue in grey, of 65536 (ITU-R 601, as PIL has them)."""


def load_images(
    source: Place | Sequence[Place], size: int | None = None, *, channels: int | None = None
) -> Tensor:
    """Read images for `attack_module`: from a folder, a .zip, a .npz file or image files.

    All images below a folder are read, whatever its sub-folders are, sorted by path as text
    (``10.jpg`` comes before ``2.jpg``); image files keep the order in which they are given. They
    are turned upright as their EXIF data say. Whatever is left out or changed is said in a warning.

    Args:
        source: a folder, a .zip or .npz file (its images as `Npz` reads them), an image file, or a
            list of image files.
        size: side to resize to (pixels): images are cut to the square at their centre first. None
            keeps the native size, which is then one for all.
        channels: 1 makes all grey, 3 makes all colour; None: grey where all images are grey.

    Returns:
        float32 (n, C, H, W) in [0, 1].

    Raises:
        ConfigError: another number of channels, or a size below 4.
        MissingInputError: there is no such file or folder.
        DamagedInputError: an image cannot be read.
        IncompatibleError: no image, sizes that differ, or more than 8 bits a channel.
    """
    if channels not in (None, 1, 3) or (size is not None and size < 4):
        raise ConfigError(
            f"load_images takes channels 1 or 3 and a size of 4 pixels or more; got {channels} and "
            f"{size}."
        )
    lone = isinstance(source, str | Path)
    given = [source] if isinstance(source, str | Path) else source
    paths = [Path(one).expanduser() for one in given]
    absent = [str(path) for path in paths if not path.exists()]
    if absent:
        raise MissingInputError(f"There is nothing at {', '.join(absent[:3])}.")
    if lone and paths[0].suffix.lower() == ".npz":
        data = Npz(path=str(paths[0])).load()
        images, notes = data.images if size is None else resize(data.images, size), data.notes
    elif lone and not is_image(paths[0].name):
        with open_tree(paths[0]) as tree:
            images, notes = _all(tree, [name for name in tree.names if is_image(name)], size)
    else:
        if folder := next((path for path in paths if path.is_dir()), None):
            raise IncompatibleError(
                f"{folder} is a folder. Needed: a list of image files, or one folder."
            )
        names = tuple(str(path) for path in paths)
        tree = Tree(Path(), names, lambda name: Path(name).read_bytes())
        images, notes = _all(tree, names, size)
    for note in notes:
        warnings.warn(note, stacklevel=3)  # behind `system.clearly`
    return _channels(images, channels).float() / 255


def _all(tree: Tree, names: Sequence[str], size: int | None) -> tuple[Tensor, tuple[str, ...]]:
    """Some images of a tree, and what is to be said about them."""
    left_out = other_endings(tree)
    if not names:
        raise IncompatibleError(f"{tree.root} holds no images.", *left_out)
    images, changed = decode_all(tree, names, size)
    return images, (*tree.notes, *left_out, *changed)


def _channels(images: Tensor, channels: int | None) -> Tensor:
    """Grey (n, 1, H, W) or colour (n, 3, H, W) of uint8 images."""
    if channels is None or images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    weights = torch.tensor(GREY)[:, None, None]
    mixed = ((images.int() * weights).sum(1, keepdim=True) + 0x8000) >> 16
    return mixed.to(torch.uint8)
