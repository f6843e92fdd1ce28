"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..core.engines import Package
from .base import PROJECT, LoggedWork, Logger, Point, loggers


@loggers.register("wandb")
class WandB(Logger):
    """Log to the project ``$WANDB_PROJECT``, or without it ``fedre-privacy``.

    With ``WANDB_MODE=offline`` nothing is sent: files are below ``wandb`` in the folder of runs
    (or in ``$WANDB_DIR``), and ``wandb sync`` sends them later. Code, console and git state are
    never sent.
    """

    also = ("weights-and-biases", "weights&biases", "wb")
    needs = (Package("wandb"),)
    extra = "wandb"

    def begin(self, work: LoggedWork) -> None:
        import wandb

        work.runs.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=work.name,
            job_type=work.kind,
            config=dict(work.settings),
            dir=os.environ.get("WANDB_DIR", str(work.runs)),
            reinit="create_new",
            save_code=False,
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, disable_code=True
            ),
        )
        self._groups: set[str] = set()

    def log(self, point: Point) -> None:
        step = f"{point.group}/step"
        if point.group not in self._groups:  # steps of tiles come in any order, W&B's own may not
            self._run.define_metric(f"{point.group}/*", step_metric=step)
            self._groups.add(point.group)
        values = {f"{point.group}/{name}": value for name, value in point.values.items()}
        self._run.log({**values, step: point.step})

    def summarise(self, values: Mapping[str, float]) -> None:
        self._run.summary.update({f"final/{name}": value for name, value in values.items()})

    def end(self, *, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)
