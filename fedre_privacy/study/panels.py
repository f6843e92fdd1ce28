"""Means over seeds as variants side by side: the measures compared, points and rows of tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedre_privacy.eval.measures import COMPARISON, FRONTIER, PLACES
from fedre_privacy.eval.report.comparison import Dot
from fedre_privacy.eval.report.frontier import Point, pareto
from fedre_privacy.play.questions.base import questions

from .results import SHARED_ACCURACY

PLACED_BY = "psnr"
"""Key of the measure that places a variant on the first frontier and decides the Pareto set: over
all targets or those of one image, the strongest over all attacks counts."""

FEWEST = 6
"""Targets, over all seeds, below which a mean decides no place on the frontier, as in a verdict."""


SILENT = "0 by construction"
"""In place of an attack, of a variant whose clients send nothing."""


@dataclass(frozen=True)
class Panel:
    """A measure by which variants are compared.

    Args:
        key: of the measure.
        answers: the question that it scores.
        measure: its title.
        unit: of value and floor.
    """

    key: str
    answers: str
    measure: str
    unit: str

    @property
    def name(self) -> str:
        """Question and measure."""
        return f"{self.answers}: {self.measure}"

    @property
    def title(self) -> str:
        """Question, measure and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


def panels_of(summary: pd.DataFrame, place: str = COMPARISON) -> list[Panel]:
    """The measures that are shown in a place, question by question.

    Args:
        summary: means over seeds (see `results.over_seeds`).
    """
    if summary.empty:
        return []
    shown = summary[summary["shown"].isin(PLACES[PLACES.index(place) :])]
    found = {
        str(row["measure"]): Panel(
            str(row["measure"]), str(row["answers"]), str(row["title"]), str(row["unit"] or "")
        )
        for row in shown.drop_duplicates("measure").to_dict("records")
    }
    asked = questions.names()
    return sorted(found.values(), key=lambda panel: asked.index(panel.answers))


def points_of(summary: pd.DataFrame, key: str = PLACED_BY) -> list[Point]:
    """One point per variant: accuracy, communication, and the attack strongest by a measure.

    What was counted to send nothing tells nothing, whatever the attack: 0 by construction.
    """
    if summary.empty:
        return []
    points = []
    for label, part in summary.groupby("label", sort=False):
        real = part["counterfactual"].fillna(True) == False  # noqa: E712 (a column of objects)
        own = part[real & (part["n"] >= FEWEST) & part["over"].notna()]
        own = compared(own, key)
        best = own.iloc[int(own["over"].argmax())] if len(own) else None
        first = part.iloc[0]
        silent = float(first["up_scalars"]) == 0
        points.append(
            Point(
                label=str(label),
                accuracy=float(first["accuracy"]),
                accuracy_sd=as_number(first["accuracy_sd"]),
                scalars=float(first["up_scalars"]),
                over=0.0 if silent else None if best is None else float(best["over"]),
                over_sd=None if best is None else as_number(best["over_sd"]),
                attack=SILENT if silent else "" if best is None else attack_name(best),
                seeds=int(first["seeds"]),
                shared=as_number(first.get(SHARED_ACCURACY)),
                shared_sd=as_number(first.get(f"{SHARED_ACCURACY}_sd")),
            )
        )
    return points


def table_of(summary: pd.DataFrame) -> list[dict[str, str]]:
    """One row per variant: accuracy, scalars per round, and each kind of leakage.

    A measure with a frontier of its own is given over its floor, others with their floor in
    brackets.
    """
    placed = {panel.key: points_of(summary, panel.key) for panel in panels_of(summary, FRONTIER)}
    best = {point.label for point in pareto(points_of(summary))}
    out = []
    for at, point in enumerate(points_of(summary)):
        part = summary[summary["label"] == point.label]
        row = {
            "variant": point.label,
            "accuracy": _pm(point.accuracy, point.accuracy_sd),
            "shared accuracy": _pm(point.shared, point.shared_sd),
            "scalars up": f"{point.scalars:,.0f}",
        }
        for panel in panels_of(summary):
            if panel.key in placed:
                own = placed[panel.key][at]
                told = SILENT if own.attack == SILENT else _pm(own.over, own.over_sd, 2)
                row[f"{panel.title} over floor"] = told
            else:
                row[panel.title] = _measure(part, panel.key)
        out.append(
            {**row, "seeds": str(point.seeds), "Pareto": "yes" if point.label in best else ""}
        )
    return out


def compared(part: pd.DataFrame, key: str) -> pd.DataFrame:
    """Rows of a measure that are compared with other variants."""
    return part[(part["measure"] == key) & part["shown"].isin(PLACES[PLACES.index(COMPARISON) :])]


def strongest(part: pd.DataFrame, key: str) -> Any | None:
    """The row with the largest leakage by a measure, of a single group where one is compared."""
    found = compared(part, key)
    found = found[found["value"].notna()]
    if not len(found):
        return None
    found = found[found["group"] == found["group"].max()]
    leaking = found["over"].notna().any()
    return found.iloc[int(found["over"].argmax())] if leaking else found.iloc[0]


def dot(part: pd.DataFrame, key: str) -> Dot:
    """The strongest value of a measure with its spread and floor, as a point of the comparison."""
    row = strongest(part, key)
    if row is None:
        return Dot(None)
    return Dot(as_number(row["value"]), as_number(row["value_sd"]), as_number(row["floor"]))


def attack_name(row: Any) -> str:
    """Attack, target and threat model of a row."""
    return f"{row['attack']} on {row['target']}, {row['threat']}"


def as_number(value: Any) -> float | None:
    """A cell of a table as a number; None where it is empty."""
    return None if value is None or pd.isna(value) else float(value)


def _pm(mean: float | None, sd: float | None, digits: int = 3) -> str:
    if mean is None or pd.isna(mean):
        return "-"
    return f"{mean:.{digits}f}" + (f" +- {sd:.{digits}f}" if sd is not None else "")


def _measure(part: pd.DataFrame, key: str) -> str:
    """The strongest value of a measure with its floor."""
    row = strongest(part, key)
    if row is None:
        return "-"
    floor = "" if pd.isna(row["floor"]) else f" ({row['floor']:.2f})"
    return f"{row['value']:.2f}{floor}"
