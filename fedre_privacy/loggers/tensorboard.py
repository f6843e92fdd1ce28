"""TensorBoard's event files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from ..core.engines import Package
from .base import LoggedWork, Logger, Point, flat_settings, loggers

FOLDER = "tensorboard"


@loggers.register("tensorboard")
class TensorBoard(Logger):
    """Write event files below ``tensorboard`` in the folder of runs, one folder for each command.

    ``tensorboard --logdir runs/tensorboard`` shows them.
    """

    also = ("tb", "tensor-board")
    needs = (Package("tensorboard"),)
    extra = "tensorboard"

    def begin(self, work: LoggedWork) -> None:
        from torch.utils.tensorboard import SummaryWriter

        now = datetime.now().strftime("%Y-%m-%d %H.%M.%S.%f")
        self._writer = SummaryWriter(str(work.runs / FOLDER / work.name / now))
        rows = [
            f"| {key} | {json.dumps(v, default=str)} |"
            for key, v in flat_settings(work.settings).items()
        ]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))

    def log(self, point: Point) -> None:
        for name, value in point.values.items():
            self._writer.add_scalar(f"{point.group}/{name}", value, point.step)

    def summarise(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"final/{name}", value, 0)

    def end(self, *, complete: bool) -> None:
        if not complete:
            self._writer.add_text("status", "not complete")
        self._writer.close()
