"""Variants in rows, what they cost and leak in columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fedre_privacy.core.errors import ConfigError

from .style import BLUE, LONGEST, SMALL, TEXT, VERMILLION, framed_figure, plain, tidy


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
    figure = framed_figure(width, 0.3 * len(labels) + 0.75, title, caption)
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
