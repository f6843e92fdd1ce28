"""Handwritten digits that come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from ..core.config import knob
from ..core.errors import MissingInputError
from .base import Dataset, ImageData, datasets, keep_per_class, resize


@datasets.register("digits")
@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """Load 1,797 real scans of handwritten digits, 8x8 and grey, enlarged; needs no file.

    Grey levels 0..16 become 0..255. There is no original test set: all rows count as training.

    Reference: E. Alpaydin and C. Kaynak, Optical recognition of handwritten digits, UCI 1998 (the
        test part, as shipped with scikit-learn).
    """

    when_to_use = "a first run: built in, small, nothing to download"
    also = ("optdigits", "sklearn", "toy")

    size: int = knob(24, help="side of the images; the scans have 8", unit="pixels", ge=4, le=1024)

    def sources(self) -> tuple[Path, ...]:
        return (_file().parent,)

    def load(self) -> ImageData:
        rows = np.loadtxt(_file(), delimiter=",")
        scans, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
        levels = torch.from_numpy(np.rint(scans * 255 / 16).astype(np.uint8))
        data = ImageData(
            name=self.name,
            images=resize(levels.unsqueeze(1), self.size),
            labels=torch.from_numpy(labels.astype(np.int64)),
            classes=tuple(str(digit) for digit in range(10)),
            num_train=len(levels),
        )
        return keep_per_class(data, self.per_class)


def _file() -> Path:
    """What `sklearn.datasets.load_digits` reads; scikit-learn itself takes seconds to import."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise MissingInputError(
            "The digits come with scikit-learn, which is not installed.",
            next_step="pip install scikit-learn, or choose another data set with --dataset.",
        )
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
