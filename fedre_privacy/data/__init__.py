"""Labelled images: one type for all of them, and one file per data set.

A data set is a frozen dataclass of settings with a `load` method (`fedre_privacy.data.base`).
"""

from .arrays import as_labels, read_pixels
from .base import Dataset, ImageData, datasets, keep_per_class, resize

__all__ = [
    "Dataset",
    "ImageData",
    "as_labels",
    "datasets",
    "keep_per_class",
    "read_pixels",
    "resize",
]
