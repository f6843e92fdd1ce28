"""Colour crops of photographs that come with scikit-image."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..core.config import knob
from ..core.errors import MissingInputError
from .base import Dataset, ImageData, datasets

PHOTOS = (
    ("astronaut", "astronaut.png", 0.25, 0.60),
    ("cat", "chelsea.png", 0.35, 0.90),
    ("coffee", "coffee.png", 0.35, 0.90),
    ("rocket", "rocket.jpg", 0.20, 0.60),
    ("galaxies", "hubble_deep_field.jpg", 0.05, 0.15),
    ("retina", "retina.jpg", 0.20, 0.60),
    ("tissue", "ihc.png", 0.20, 0.60),
    ("motorcycle", "motorcycle_left.png", 0.30, 0.90),
)
"""Class, file, and the range of the crop's side as a share of the short edge: chosen by eye so
that a 32-pixel crop shows a recognisable piece."""

MIN_CONTRAST = 20.0
"""Standard deviation of grey levels (0..255) below which a crop counts as empty sky."""

TRIES = 100


@datasets.register("photos")
@dataclass(frozen=True, kw_only=True)
class Photos(Dataset):
    """Cut random squares out of eight real photographs; needs no file and no network.

    The class is the photograph. Squares of random side and place are resized (antialiased,
    bilinear); nearly uniform ones are drawn again. There is no original test set: all rows count
    as training.

    Reference: files of the scikit-image package, read from the installed package itself.
    Raises:
        MissingInputError: this build of scikit-image comes without one of the files.
    """

    when_to_use = "colour images without a file or a network: built in"

    size: int = knob(32, help="side of the images", unit="pixels", ge=8, le=1024)
    per_photo: int = knob(200, help="squares cut from each photograph", unit="images", ge=1)
    seed: int = knob(0, help="seed of the sides and places of the squares", ge=0, le=2**32 - 9)

    def sources(self) -> tuple[Path, ...]:
        return (Path(str(resources.files("skimage").joinpath("data"))),)

    def load(self) -> ImageData:
        count = min(self.per_photo, self.per_class or self.per_photo)
        crops = [
            _crops(_photo(file), low, high, count, self.size, np.random.RandomState(self.seed + i))
            for i, (_, file, low, high) in enumerate(PHOTOS)
        ]
        return ImageData(
            name=self.name,
            images=torch.cat(crops),
            labels=torch.arange(len(PHOTOS)).repeat_interleave(count),
            classes=tuple(label for label, *_ in PHOTOS),
            num_train=count * len(PHOTOS),
            notes=(
                "Squares cut from one photograph overlap, so held-out squares share pixels with "
                "training ones: accuracy is optimistic.",
            ),
        )


def _photo(file: str) -> Image.Image:
    # Not through skimage.data, which downloads what it does not find.
    source = resources.files("skimage").joinpath("data", file)
    if not source.is_file():
        raise MissingInputError(
            f"Data set 'photos' needs {file} of the scikit-image package; this installation comes "
            "without it.",
            next_step="Reinstall scikit-image with pip, or use --dataset digits.",
        )
    with source.open("rb") as handle, Image.open(handle) as image:
        return image.convert("RGB")


def _crops(
    photo: Image.Image,
    low: float,
    high: float,
    count: int,
    size: int,
    random: np.random.RandomState,
) -> Tensor:
    """Cut `count` squares: uint8 (count, 3, size, size)."""
    width, height = photo.size
    out = np.empty((count, size, size, 3), dtype=np.uint8)
    for row in range(count):
        best = -1.0
        for _ in range(TRIES):
            side = round(min(width, height) * random.uniform(low, high))
            top, left = random.randint(height - side + 1), random.randint(width - side + 1)
            box = (left, top, left + side, top + side)
            crop = np.asarray(photo.resize((size, size), Image.Resampling.BILINEAR, box=box))
            contrast = float(crop.mean(-1).std())
            if contrast > best:
                best, out[row] = contrast, crop
            if contrast >= MIN_CONTRAST:
                break
    return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()
