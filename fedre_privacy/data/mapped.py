"""Room for many images: in memory, or in a file that the system reads and lets go by itself."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import torch
from torch import Tensor

from ..core.errors import StorageError
from ..core.memory import available_bytes
from ..core.units import human_bytes

SHARE = 4
"""Images that take more than one part in so many of the memory that is left go to a file."""


def empty_images(count: int, shape: tuple[int, ...]) -> Tensor:
    """Make room for uint8 images (count, *shape), whose values are whatever they are.

    Few are in memory. Many are in a file without a name in the folder for temporary files
    (``$TMPDIR``), which is mapped into memory and goes with the process: the system keeps what is
    in use, and gives the rest back when memory runs short. Values are the same either way.

    Raises:
        StorageError: the disk has no room for the file.
    """
    size, available = count * int(np.prod(shape)), available_bytes()
    if available is None or size <= available / SHARE:
        return torch.empty((count, *shape), dtype=torch.uint8)
    folder = tempfile.gettempdir()
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            reserve = getattr(os, "posix_fallocate", None)  # a full disk ends a mapped write
            if reserve is None:
                os.truncate(file.fileno(), size)
            else:
                reserve(file.fileno(), 0, size)
        except OSError as error:
            raise StorageError(
                f"The images take {human_bytes(size)}, which is much of the memory that is left "
                f"({human_bytes(available)}), and {folder} has no room for them "
                f"({error.strerror}).",
                next_step="Name a folder on a large disk: TMPDIR=DIR and the same command.",
            ) from None
        mapped = np.memmap(file, np.uint8, "r+", shape=(count, *shape))
    return torch.from_numpy(mapped)


def copy_images(images: Tensor, channels: int | None = None) -> Tensor:
    """Copy uint8 images (N, C, H, W) one by one, grey ones to `channels` where it is given."""
    made = empty_images(len(images), (channels or images.shape[1], *images.shape[2:]))
    for row, image in enumerate(images):
        made[row] = image
    return made
