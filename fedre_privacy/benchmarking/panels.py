"""Means over seeds as variants side by side: the measures compared, points and rows of tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedre_privacy.eval.measures import COMPARISON, FRONTIER, PLACES
from fedre_privacy.eval.report.comparison import Dot
from fedre_privacy.eval.report.frontier import Point, pareto
from fedre_privacy.experiments.questions.base import questions
from fedre_privacy.runs.folder import COMPLETE
from fedre_privacy.runs.settings import NAIVE

from .results import SHARED_ACCURACY, WHICH

PLACED_BY = "psnr"
"""Key of the measure that places a variant on the first frontier and decides the Pareto set: over
all targets or those of one image, the strongest over all attacks counts."""

FEWEST = 6
"""Targets, over all seeds, below which a mean decides no place on the frontier, as in a verdict."""


SILENT = "0 by construction"
"""In place of an attack, of a variant whose clients send nothing."""


@dataclass(frozen=True)
class ComparisonPanel:
    """A measure by which variants are compared."""

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


def panels_of(summary: pd.DataFrame, place: str = COMPARISON) -> list[ComparisonPanel]:
    """The measures that are shown in a place, question by question.

    Args:
        summary: means over seeds (see `results.over_seeds`).
    """
    if summary.empty:
        return []
    shown = summary[summary["shown"].isin(PLACES[PLACES.index(place) :])]
    found = {
        str(row["measure"]): ComparisonPanel(
            str(row["measure"]), str(row["answers"]), str(row["title"]), str(row["unit"] or "")
        )
        for row in shown.drop_duplicates("measure").to_dict("records")
    }
    asked = questions.names()
    return sorted(found.values(), key=lambda panel: asked.index(panel.answers))


def points_of(summary: pd.DataFrame, rows: pd.DataFrame, key: str = PLACED_BY) -> list[Point]:
    """One point per variant: accuracy, communication, and the attack strongest by a measure.

    The best of several means is too good by luck on the seeds that chose it. So attack and group
    are chosen for each seed on the others, and the mean is over what they reach on the seeds left
    out. What was counted to send nothing tells nothing, whatever the attack: 0 by construction.

    Args:
        summary: means over seeds (see `results.over_seeds`).
        rows: of single seeds (see `results.frame`).
    """
    if summary.empty:
        return []
    points = []
    for label, part in summary.groupby("label", sort=False):
        real = part["counterfactual"].fillna(True) == False  # noqa: E712 (a column of objects)
        own = part[real & (part["n"] >= FEWEST) & part["over"].notna()]
        best = _best(comparable_rows(own, key), rows)
        first = part.iloc[0]
        silent = float(first["up_scalars"]) == 0
        points.append(
            Point(
                label=str(label),
                accuracy=float(first["accuracy"]),
                accuracy_sd=as_number(first["accuracy_sd"]),
                scalars=float(first["up_scalars"]),
                over=0.0 if silent else None if best is None else best.over,
                over_sd=None if best is None else best.sd,
                attack=SILENT if silent else "" if best is None else best.attack,
                seeds=int(first["seeds"]),
                shared=as_number(first.get(SHARED_ACCURACY)),
                shared_sd=as_number(first.get(f"{SHARED_ACCURACY}_sd")),
                chosen="" if silent or best is None else best.chosen,
                targets=None if best is None else best.targets,
            )
        )
    return points


OTHERS, ITSELF = "the other seeds", "the seed reported"
"""Seeds on which the strongest attack was chosen."""


@dataclass(frozen=True)
class _Best:
    """The strongest attack: mean and sd over seeds, its name, how it was chosen, its targets."""

    over: float
    sd: float | None
    attack: str
    chosen: str
    targets: int


def _best(candidates: pd.DataFrame, rows: pd.DataFrame) -> _Best | None:
    """The strongest of some rows of a summary, each seed's chosen on the other seeds."""
    if not len(candidates):
        return None
    reached = pd.concat([_by_seed(row, rows) for _, row in candidates.iterrows()], axis=1)
    values = reached.to_numpy(dtype=float)  # (seeds, candidates)
    if len(values) < 2:
        first = candidates.iloc[int(candidates["over"].argmax())]
        chosen = ITSELF if len(candidates) > 1 else ""
        sd, name = as_number(first["over_sd"]), attack_name(first)
        return _Best(float(first["over"]), sd, name, chosen, int(first["n"]))
    picked = []
    for seed, here in enumerate(values):
        others = np.delete(values, seed, axis=0)
        known = ~np.isnan(here) & ~np.isnan(others).all(axis=0)
        if known.any():
            means = np.where(known, np.nanmean(np.where(known, others, 0.0), axis=0), -np.inf)
            picked.append((int(means.argmax()), float(here[means.argmax()])))
    if not picked:  # no attack ran on two seeds
        first = candidates.iloc[int(candidates["over"].argmax())]
        sd, name = as_number(first["over_sd"]), attack_name(first)
        return _Best(float(first["over"]), sd, name, ITSELF, int(first["n"]))
    found = pd.Series([over for _, over in picked])
    most = Counter(at for at, _ in picked).most_common(1)[0][0]
    return _Best(
        float(found.mean()),
        as_number(found.std()),
        attack_name(candidates.iloc[most]),
        OTHERS if len(candidates) > 1 else "",
        int(candidates.iloc[most]["n"]),
    )


def _by_seed(row: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """Leakage of one row of a summary by seed."""
    here = rows["status"] == COMPLETE
    for name in ("label", *WHICH, "measure", "group"):
        here &= rows[name].isna() if pd.isna(row[name]) else rows[name] == row[name]
    return rows[here].groupby("seed")["over"].mean()


def table_of(summary: pd.DataFrame, rows: pd.DataFrame) -> list[dict[str, str]]:
    """One row per variant: accuracy, scalars per round, and each kind of leakage.

    A measure with a frontier of its own is given over its floor, others with their floor in
    brackets.

    Args:
        summary: means over seeds (see `results.over_seeds`).
        rows: of single seeds (see `results.frame`).
    """
    placed = {
        panel.key: points_of(summary, rows, panel.key) for panel in panels_of(summary, FRONTIER)
    }
    points = points_of(summary, rows)
    best = {point.label for point in pareto(points)}
    chosen = any(point.chosen for point in points)
    out = []
    for at, point in enumerate(points):
        part = summary[summary["label"] == point.label]
        row = {
            "variant": point.label,
            "accuracy": plus_minus(point.accuracy, point.accuracy_sd),
            "shared accuracy": plus_minus(point.shared, point.shared_sd),
            "scalars up": f"{point.scalars:,.0f}",
        }
        for panel in panels_of(summary):
            if panel.key in placed:
                own = placed[panel.key][at]
                told = SILENT if own.attack == SILENT else plus_minus(own.over, own.over_sd, 2)
                row[f"{panel.title} over floor"] = told
            else:
                row[panel.title] = _measure(part, panel.key)
        if chosen:
            row["strongest chosen on"] = point.chosen or "-"
        out.append(
            {**row, "seeds": str(point.seeds), "Pareto": "yes" if point.label in best else ""}
        )
    return out


def comparable_rows(part: pd.DataFrame, key: str) -> pd.DataFrame:
    """Rows of a measure that are compared with other variants."""
    return part[(part["measure"] == key) & part["shown"].isin(PLACES[PLACES.index(COMPARISON) :])]


def strongest(part: pd.DataFrame, key: str) -> Any | None:
    """The row with the largest leakage by a measure, of a single group where one is compared."""
    found = comparable_rows(part, key)
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
    """Attack, target and threat model of a row, and whether it knows no defence."""
    naive = f", {NAIVE}" if row["attacker"] == NAIVE else ""
    return f"{row['attack']} on {row['target']}, {row['threat']}{naive}"


def as_number(value: Any) -> float | None:
    """A cell of a table as a number; None where it is empty."""
    return None if value is None or pd.isna(value) else float(value)


def plus_minus(mean: float | None, sd: float | None, digits: int = 3) -> str:
    """A mean with its sd over seeds, in words."""
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
