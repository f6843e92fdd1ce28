"""What defences seem to stop, what they stop, and what they cost.

An attacker that does not know a defence understates what is left of a leak. So each defended
training is attacked twice, naive and adaptive, and the difference is the defence's false security.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedre_privacy.core.units import human_bytes
from fedre_privacy.eval.measures import SINGLE
from fedre_privacy.eval.report.comparison import Column, Dot
from fedre_privacy.eval.report.frontier import Point
from fedre_privacy.runs.settings import NAIVE

from .panels import FEWEST, PLACED_BY, as_number, plus_minus, points_of, strongest
from .results import ROUND_SECONDS

FOUND = "hit1"
"""Key of the measure that says how many targets are recognised among others."""


@dataclass(frozen=True)
class DefenceCost:
    """A variant under both attackers.

    Args:
        adaptive: accuracy, scalars and leakage under attackers that know the defence.
        naive: the same under those that do not; None where nothing is defended.
        single: whether both are over targets made of one image, and not over all targets.
        found, guess: share of targets found by the adaptive attack, and that of its floor.
        found_naive: by the naive one.
        upload_bytes: of all clients in a round. seconds: of the fastest round of all seeds, which
            other work on the machine lengthens least.
    """

    adaptive: Point
    naive: Point | None
    single: bool
    found: float | None
    guess: float | None
    found_naive: float | None
    upload_bytes: float | None
    seconds: float | None

    @property
    def false_security(self) -> float | None:
        """Leakage that a naive attack overlooks, in the unit of the measure."""
        if self.naive is None or self.naive.over is None or self.adaptive.over is None:
            return None
        return self.adaptive.over - self.naive.over


def defence_costs(
    summary: pd.DataFrame, rows: pd.DataFrame, key: str = PLACED_BY
) -> list[DefenceCost]:
    """One for each variant, or none where no naive attack was run.

    Both attackers are compared on the same targets: those made of one image where there are enough
    of them, else all.

    Args:
        summary: means over seeds (see `results.over_seeds`).
        rows: of single seeds (see `results.frame`).
        key: of the measure of leakage.
    """
    if summary.empty or not (summary["attacker"] == NAIVE).any():
        return []
    enough = (summary["measure"] == key) & (summary["group"] == SINGLE) & (summary["n"] >= FEWEST)
    single = set(summary[enough]["label"])
    alone = summary["label"].isin(single)
    summary = summary[np.where(alone, summary["group"] == SINGLE, summary["group"] != SINGLE)]
    own = summary["attacker"] != NAIVE
    known = points_of(summary[own], rows[rows["attacker"] != NAIVE], key)
    blind = points_of(summary[~own], rows[rows["attacker"] == NAIVE], key)
    naive = {point.label: point for point in blind}
    found = []
    for point in known:
        part = summary[own & (summary["label"] == point.label)]
        hits = strongest(part, FOUND)  # of the same targets
        blind_hits = strongest(summary[~own & (summary["label"] == point.label)], FOUND)
        first = part.iloc[0]
        found.append(
            DefenceCost(
                point,
                naive.get(point.label),
                point.label in single,
                None if hits is None else as_number(hits["value"]),
                None if hits is None else as_number(hits["floor"]),
                None if blind_hits is None else as_number(blind_hits["value"]),
                as_number(first.get("up_bytes")),
                as_number(rows[rows["label"] == point.label][ROUND_SECONDS].min()),
            )
        )
    return found


def defence_table(costs: Sequence[DefenceCost], unit: str = "dB") -> list[dict[str, str]]:
    """The variants as rows of a table."""
    out = []
    for one in costs:
        more, point, naive = one.false_security, one.adaptive, one.naive
        out.append(
            {
                "variant": point.label,
                "accuracy": plus_minus(point.accuracy, point.accuracy_sd),
                f"naive, {unit} over floor": "-"
                if naive is None
                else plus_minus(naive.over, naive.over_sd, 2),
                f"adaptive, {unit} over floor": plus_minus(point.over, point.over_sd, 2),
                "false security": "-" if more is None else f"{more:+.2f}",
                "found by naive": "-" if one.found_naive is None else f"{one.found_naive:.2f}",
                "found (guess)": "-"
                if one.found is None
                else f"{one.found:.2f} ({one.guess or 0:.2f})",
                "n": str(point.targets or "-"),
                "targets": "one image each" if one.single else "all",
                "seconds a round": "-" if one.seconds is None else f"{one.seconds:.2g}",
                "sent a round": "-" if one.upload_bytes is None else human_bytes(one.upload_bytes),
                "seeds": str(point.seeds),
            }
        )
    return out


def defence_columns(costs: Sequence[DefenceCost], unit: str = "dB") -> list[Column]:
    """The same as panels of a figure, one dot for each variant."""

    def leak(point: Point | None) -> Dot:
        return Dot(None) if point is None else Dot(point.over, point.over_sd, floor=0.0)

    return [
        Column("accuracy", tuple(Dot(c.adaptive.accuracy, c.adaptive.accuracy_sd) for c in costs)),
        Column(
            f"naive attacker,\n{unit} over floor",
            tuple(leak(one.naive) for one in costs),
            absent="nothing to know",
        ),
        Column(f"adaptive attacker,\n{unit} over floor", tuple(leak(c.adaptive) for c in costs)),
        Column(
            f"false security,\n{unit}",
            tuple(Dot(one.false_security) for one in costs),
            absent="nothing to know",
        ),
        Column("found", tuple(Dot(one.found, floor=one.guess) for one in costs)),
        Column("seconds a round", tuple(Dot(one.seconds) for one in costs), absent="unknown"),
        Column("bytes sent", tuple(Dot(one.upload_bytes) for one in costs), log=True),
    ]
