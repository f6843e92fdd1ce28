"""What is known of one result below a folder, whatever its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedre_privacy.eval.report.frontier import Point

RUN, ATTACK, AUDIT, MEMBERSHIP, BENCHMARK = "run", "attack", "audit", "membership", "benchmark"
DAMAGED = "damaged"
"""Status of a result whose files are not what was written."""

Column = Sequence[float | int | str | None]
Row = Mapping[str, object]


@dataclass(frozen=True)
class Score:
    """The leading measure of a result.

    Args:
        title: of the measure, with its unit.
        over: difference to the floor, positive for more leakage.
    """

    title: str
    over: float
    text: str


@dataclass(frozen=True)
class Table:
    """Rows of equal keys under a heading."""

    title: str
    rows: Sequence[Row]

    def plain(self) -> dict[str, Any]:
        """Its headings, and its cells row by row."""
        heads = list(dict.fromkeys(str(key) for row in self.rows for key in row))
        rows = [[row.get(head, "") for head in heads] for row in self.rows]
        return {"title": self.title, "heads": heads, "rows": rows}


@dataclass(frozen=True)
class Sheets:
    """Pictures of one size, many to an image file.

    Args:
        width, height: of one picture, in pixels.
        which: the picture of each target; None: that of its own number.
    """

    width: int
    height: int
    across: int
    each: int
    pngs: tuple[bytes, ...]
    which: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Targets:
    """The single targets of an attack.

    Args:
        columns: by name, one value a target; numbers, or texts where they are no numbers.
        scores: names of the columns that are measures, with a title and whether more is more
            leakage.
        doubts: names of the columns that the attack tells of itself, without the truth.
        keys: texts that are equal for targets with the same truth; empty where that is not known.
        clusters: texts that are equal for targets of the same client of the same split.
        pictures: "truth", "answer" and "floor", as far as there are any.
    """

    columns: Mapping[str, Column]
    scores: Mapping[str, tuple[str, bool]]
    doubts: tuple[str, ...]
    keys: tuple[str, ...]
    clusters: tuple[str, ...]
    pictures: Mapping[str, Sheets] = field(default_factory=dict)


@dataclass(frozen=True)
class FrontierPanel:
    """A frontier of a benchmark."""

    title: str
    points: tuple[Point, ...]
    best: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """One bar of the small chart in the list.

    Args:
        value: at least 0, in the unit of the other bars beside it.
    """

    label: str
    value: float


@dataclass(frozen=True)
class ResultEntry:
    """One run, attack, audit, membership game or benchmark.

    Args:
        path: of its folder, relative to the folder that is viewed, with slashes.
        status: complete, partial, failed or damaged.
        facets: what it can be filtered by: protocol, scheme, defence, data, attack, target,
            adversary, verdict, as far as they apply.
        n: targets, guesses or trainings behind it.
        thumbnail: PNG of the first targets; the list shows it, or else the bars.
    """

    kind: str
    path: str
    status: str
    problem: str = ""
    facets: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    started: str = ""
    because: str = ""
    score: Score | None = None
    n: int | None = None
    accuracy: float | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    parent: str = ""
    targets: Targets | None = None
    panels: tuple[FrontierPanel, ...] = ()
    thumbnail: bytes | None = None
    bars: tuple[Bar, ...] = ()

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]
