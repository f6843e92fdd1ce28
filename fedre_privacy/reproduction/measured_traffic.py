"""What recorded runs sent, beside the formulas of their protocols."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch

from fedre_privacy.core.errors import DamagedInputError, MissingInputError
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.split import num_parameters
from fedre_privacy.protocols.blocks.averaging import state_of
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes
from fedre_privacy.runs.folder import COMPLETE
from fedre_privacy.runs.run import Run

from .communication import DIRECTIONS, SETTINGS, ReportedCell
from .published_tables import CLIENTS


@dataclass(frozen=True)
class Spread:
    """Mean, least and most over the rounds of a run."""

    mean: float
    least: int
    most: int

    @classmethod
    def of(cls, values: Sequence[int]) -> Self | None:
        """Summarise; None where there are no rounds."""
        return cls(sum(values) / len(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class MeasuredTraffic:
    """What a recorded run sent: all its rounds up, all after the first down.

    Args:
        paper, complete, nbytes: by direction, ``up`` and ``down``.
        formula: ours for this run; None under partial participation or for a protocol without.
    """

    name: str
    protocol: str
    data_set: str
    setting: str
    clients: int
    summary: str
    rounds: int
    paper: Mapping[str, Spread | None] = field(default_factory=dict)
    complete: Mapping[str, Spread | None] = field(default_factory=dict)
    nbytes: Mapping[str, Spread | None] = field(default_factory=dict)
    formula: Exchange | None = None

    def belongs_to(self, cell: ReportedCell) -> bool:
        """Whether it is a run of a cell's method, data set, models and number of clients."""
        mine = (self.protocol, self.data_set, self.setting, self.clients)
        return mine == (cell.protocol, cell.data_set, cell.setting, CLIENTS)


def measure_traffic(run: Run) -> MeasuredTraffic:
    """Summarise the ledger of a recorded run.

    Raises:
        MissingInputError: training did not finish.
        DamagedInputError: ``metrics.csv`` is absent, changed, or lacks the ledger's columns.
    """
    if run.record.get("status") != COMPLETE:
        raise MissingInputError(
            f"Run {run.name} is {run.record.get('status')}: training did not finish.",
            next_step="Go on with fedre-train --resume and the run's settings.",
        )
    path = run.unchanged("metrics.csv")
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            rows = list(csv.DictReader(handle))
        sent = {
            column: {
                direction: Spread.of(
                    [int(row[f"{direction}_{column}"]) for row in rows[direction == "down" :]]
                )
                for direction in DIRECTIONS
            }
            for column in ("scalars_paper", "scalars", "bytes")
        }
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DamagedInputError(
            f"{path} is not the ledger of a run ({type(error).__name__}: {error}).",
            next_step="Train again with fedre-train --restart.",
        ) from None
    settings = run.settings
    names = set(run.record["architectures"])
    sizes = sizes_of_run(run)
    return MeasuredTraffic(
        name=run.name,
        protocol=settings.protocol.name,
        data_set=settings.data.name,
        setting=SETTINGS[len(names) > 1],
        clients=settings.train.clients,
        summary=run.record["summary"],
        rounds=len(rows),
        paper=sent["scalars_paper"],
        complete=sent["scalars"],
        nbytes=sent["bytes"],
        formula=settings.protocol.traffic(sizes) if sizes else None,
    )


def sizes_of_run(run: Run) -> Sizes | None:
    """The sizes of a recorded run; None where the formulas do not describe it.

    They are for full participation, broadcasts to the next round's clients, and no statistics of
    BatchNorm.
    """
    settings = run.settings
    protocol, shape = settings.protocol, run.image_shape
    if settings.train.join_ratio < 1 or settings.train.broadcast_to != "next":
        return None
    classes = len(run.record["classes"])

    def size(model: ModelSettings) -> int:
        with torch.device("meta"):
            return num_parameters(build_model(model, 0, shape, classes))

    small = protocol.shared_model()
    if protocol.sends_buffers() and _has_buffers(small or settings.model, shape, classes):
        return None
    return Sizes.of(
        run.record["class_counts"],
        dim=run.record["dim"],
        model=size(settings.model),
        small=size(small) if small else 0,
    )


def _has_buffers(model: ModelSettings, shape: tuple[int, int, int], classes: int) -> bool:
    with torch.device("meta"):
        made = build_model(model, 0, shape, classes)
    return len(state_of(made, buffers=True)) > len(state_of(made))
