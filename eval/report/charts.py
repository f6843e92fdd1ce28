"""Rows of values beside their floors: measures, variants, audits, and attacks against protocols."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter

from fedre_privacy.core.errors import ConfigError

from ..measures import Measure, group_name
from .style import BLUE, LONGEST, SMALL, TEXT, VERMILLION, framed, plain, tidy


def measure_chart(measures: Sequence[Measure], *, title: str, caption: str = "") -> Figure:
    """Draw measures as points with intervals; a short red line marks what no upload is needed for.

    Raises:
        ConfigError: no measure has a value.
    """
    bars = [(measure, measure.value) for measure in measures if measure.value is not None]
    if not bars:
        raise ConfigError("There is nothing to draw: the attack has no measure with a value.")
    figure = framed(6.4, 0.36 * len(bars) + 0.55, title, caption)
    axes = figure.subplots()
    several = any(bar.group for bar, _ in bars)
    for row, (bar, value) in enumerate(reversed(bars)):
        if bar.interval is not None:
            axes.plot(bar.interval, (row, row), color=BLUE, lw=1.6, zorder=2)
        axes.plot(value, row, "o", color=BLUE, ms=6, zorder=3)
        if bar.floor is not None:
            axes.plot((bar.floor, bar.floor), (row - 0.32, row + 0.32), color=VERMILLION, lw=2)
        axes.text(
            1.02, row, f"{bar.number(bar.value)}  n = {bar.n}", fontsize=SMALL, va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    names = [
        f"{bar.heading}, {group_name(bar.group)}" if several else bar.heading
        for bar, _ in reversed(bars)
    ]
    axes.set_yticks(range(len(bars)), [plain(name, LONGEST) for name in names])
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.set_xlabel("measure (red: floor)")
    tidy(axes)
    return figure


@dataclass(frozen=True)
class Dot:
    """A value with its sd over seeds, its floor, and what it cannot exceed; None: there is none."""

    value: float | None
    sd: float | None = None
    floor: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Column:
    """One panel: a title and one dot per variant, in the order of the rows.

    `absent` stands where there is no value.
    """

    title: str
    dots: tuple[Dot, ...]
    log: bool = False
    absent: str = "no attack"


def comparison(
    labels: Sequence[str], columns: Sequence[Column], *, title: str, caption: str = ""
) -> Figure:
    """Draw one panel per column; red ticks are floors, black ones what no value can exceed.

    Words stand where there is no value.

    Columns without any value are left out.

    Raises:
        ConfigError: nothing to draw.
    """
    shown = [c for c in columns if any(dot.value is not None for dot in c.dots)]
    if not labels or not shown:
        raise ConfigError("There is nothing to draw: no variant has a measure with a value.")
    names = [plain(label, LONGEST) for label in reversed(labels)]
    width = max(0.5 + 0.075 * max(map(len, names)) + 1.55 * len(shown), 6.0)
    figure = framed(width, 0.3 * len(labels) + 0.75, title, caption)
    for number, column in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), number + 1)
        if column.log:
            axes.set_xscale("log")
        for row, dot in enumerate(reversed(column.dots)):
            if dot.value is None:
                axes.text(
                    0.5, row, plain(column.absent), fontsize=SMALL - 1, color="#888888",
                    ha="center", va="center", transform=axes.get_yaxis_transform(),
                )  # fmt: skip
                continue
            if dot.sd:
                axes.plot((dot.value - dot.sd, dot.value + dot.sd), (row, row), color=BLUE, lw=1.4)
            axes.plot(dot.value, row, "o", color=BLUE, ms=5)
            if dot.floor is not None:
                axes.plot((dot.floor,) * 2, (row - 0.3, row + 0.3), color=VERMILLION, lw=1.8)
            if dot.most is not None:
                axes.plot((dot.most,) * 2, (row - 0.3, row + 0.3), color="black", lw=1.8)
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.set_yticks(range(len(labels)), names if number == 0 else [])
        axes.margins(x=0.12)
        tidy(axes)
        if column.log:
            ends = (end for dot in column.dots for end in (dot.value, dot.most))
            _decades(axes, [end for end in ends if end])
        else:
            axes.locator_params(axis="x", nbins=3)
            axes.xaxis.get_offset_text().set_fontsize(SMALL - 1)
        lines = [plain(line, LONGEST) for line in column.title.split("\n")]
        axes.set_title("\n".join(lines), fontsize=SMALL)
        axes.tick_params(axis="y", labelsize=TEXT if number == 0 else SMALL)
    return figure


def _decades(axes: Axes, values: Sequence[float]) -> None:
    """Label whole powers of ten only, at least two of them."""
    if values:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        axes.set_xlim(10.0**low * 0.7, 10.0 ** max(high, low + 1) * 1.4)
    axes.xaxis.set_major_locator(LogLocator(numticks=4))
    axes.xaxis.set_minor_formatter(NullFormatter())


def audit_chart(
    rows: Sequence[tuple[str, float, float | None, float]], *, title: str, caption: str = ""
) -> Figure:
    """Draw one row for each claim: shown (filled), promised (open), what could be shown (cross).

    A claim that is refuted, shown above promised, is red.

    Args:
        rows: name, epsilon shown at least, promised at most (None: nothing is), and the most that
            the design of the audit could have shown.
    """
    figure = framed(5.4, 0.4 * len(rows) + 0.9, title, caption)
    axes = figure.subplots()
    for row, (_, shown, promised, ceiling) in enumerate(reversed(rows)):
        colour = VERMILLION if promised is not None and shown > promised else BLUE
        axes.plot((shown, ceiling if promised is None else promised), (row, row), color=colour,
                  lw=2.2, ls=":" if promised is None else "-", zorder=2)  # fmt: skip
        axes.plot(shown, row, ">", color=colour, ms=7, zorder=3)
        if promised is not None:
            axes.plot(promised, row, "<", color=colour, mfc="white", ms=7, zorder=3)
        axes.plot(ceiling, row, "x", color="#666666", ms=6, zorder=3)
        said = "none" if promised is None else f"{promised:.2f}"
        axes.text(
            1.02, row, f"[{shown:.2f}, {said}]", fontsize=SMALL, va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [plain(name, LONGEST) for name, *_ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(
        0, 1.3 * max(max(shown, promised or 0, most) for _, shown, promised, most in rows)
    )
    axes.set_xlabel("epsilon   > shown at least   < promised at most   x could have been shown")
    tidy(axes)
    return figure


GREY, PALE, STRONG = "#eeeeee", "#fbe3d5", "#f0a679"


@dataclass(frozen=True)
class Cell:
    """One attack on one protocol.

    Args:
        over: leakage over the floor in `unit`, or None.
        why: what stands there in place of it: why there is none, or why it needs no attack.
    """

    row: str
    column: str
    over: float | None
    unit: str = ""
    why: str = ""


def matrix(cells: Sequence[Cell], *, caption: str = "", title: str = "") -> Figure:
    """Draw figure E: protocols in rows, attacks in columns.

    The number says what was found; colour repeats its sign only: white at or below the floor, pale
    above it, darker above 1 dB or 0.1.

    Raises:
        ConfigError: no cell.
    """
    rows = list(dict.fromkeys(cell.row for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    if not columns:
        raise ConfigError("There is nothing to draw: no attack was asked for.")
    down, across = ([plain(name, LONGEST) for name in names] for names in (rows, columns))
    width = 1.3 + 0.075 * max(map(len, down)) + 0.85 * len(columns)
    height = 0.3 + 0.32 * len(rows) + 0.04 * max(map(len, across))
    title = title or "Which attack reads what, and how far above its floor"
    figure = framed(max(width, 5.0), height, title, caption)
    axes = figure.subplots()
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    for cell in cells:
        x, y = columns.index(cell.column), rows.index(cell.row)
        known = cell.over is not None
        colour = GREY
        if cell.over is not None:
            much = 1.0 if cell.unit == "dB" else 0.1
            colour = "white" if cell.over <= 0 else STRONG if cell.over > much else PALE
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#c8c8c8", lw=0.6))
        shown = plain(cell.why.replace("\n", " ")) or f"{cell.over:+.2f} {cell.unit}".rstrip()
        axes.text(
            x + 0.5, y + 0.5, shown, ha="center", va="center",
            fontsize=SMALL if known else SMALL - 1.2, color="black" if known else "#707070",
        )  # fmt: skip
    axes.set_yticks([i + 0.5 for i in range(len(rows))], down, fontsize=TEXT)
    axes.set_xticks(
        [i + 0.5 for i in range(len(columns))], across, fontsize=SMALL, rotation=40, ha="left"
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
