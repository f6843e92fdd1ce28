"""Attacks against protocols: how far above the floor, or why nothing can be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedre_privacy.core.errors import ConfigError

from .style import LONGEST, SMALL, TEXT, framed_figure, plain

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


def matrix(cells: Sequence[Cell], *, caption: str = "") -> Figure:
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
    title = "Which attack reads what, and how far above its floor"
    figure = framed_figure(max(width, 5.0), height, title, caption)
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
