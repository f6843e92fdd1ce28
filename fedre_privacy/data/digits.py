"""Handwritten digits that come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from ..core.config import knob
from .base import Dataset, ImageData, datasets, keep_per_class, resize


@datasets.register("digits")
@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """Load 1,797 real scans of handwritten digits, 8x8 and grey, enlarged; needs no file.

    Grey levels 0..16 become 0..255. There is no original test set: all rows count as training.

    Reference: E. Alpaydin and C. Kaynak, Optical recognition of handwritten digits, UCI 1998 (the
        test part, as shipped with scikit-learn).
    """

    size: int = knob(24, help="side of the images; the scans have 8", unit="pixels", ge=4, le=1024)

    def sources(self) -> tuple[Path, ...]:
        return (Path(str(resources.files("sklearn").joinpath("datasets", "data"))),)

    def load(self) -> ImageData:
        from sklearn.datasets import load_digits  # slow to import

        scans = load_digits()
        levels = torch.from_numpy(np.rint(scans.images * 255 / 16).astype(np.uint8))
        data = ImageData(
            name=self.name,
            images=resize(levels.unsqueeze(1), self.size),
            labels=torch.from_numpy(scans.target.astype(np.int64)),
            classes=tuple(str(digit) for digit in range(10)),
            num_train=len(levels),
        )
        return keep_per_class(data, self.per_class)
