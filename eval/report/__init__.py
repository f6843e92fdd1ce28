"""Figures: each function returns a matplotlib Figure, `save_figure` writes it as files."""

from .curves import training_curves
from .figures import attack_trace, partition_picture
from .sheets import Pick, image_sheet, pick_rows, reconstruction_sheet
from .style import save_figure

__all__ = [
    "Pick",
    "attack_trace",
    "image_sheet",
    "partition_picture",
    "pick_rows",
    "reconstruction_sheet",
    "save_figure",
    "training_curves",
]
