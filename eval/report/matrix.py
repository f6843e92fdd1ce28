"""Attacks against protocols: how far above the floor, or why nothing can be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedre_privacy.core.errors import ConfigError

from .style import SMALL, TEXT, blank, caption_height, wrap, write_caption, write_title

GREY, PALE, STRONG = "#eeeeee", "#fbe3d5", "#f0a679"


@dataclass(frozen=True)
class Cell:
    """One attack on one protocol.

    Args:
        leakage: over the floor in `unit`, or None.
        why: what stands there where there is no leakage.
    """

    row: str
    column: str
    leakage: float | None
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
    left = max(len(name) for name in rows) * 0.075 + 0.35
    wide, high = 0.85, 0.32
    top = 0.55 + 0.062 * max(len(name) for name in columns) * 0.6
    width = max(left + wide * len(columns) + 0.9, 5.0)
    lines = wrap(caption, width)
    foot = caption_height(lines) + 0.15
    height = foot + high * len(rows) + top
    figure = blank(width, height)
    area = (left / width, foot / height, wide * len(columns) / width, high * len(rows) / height)
    axes = figure.add_axes(area)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    for cell in cells:
        x, y = columns.index(cell.column), rows.index(cell.row)
        known = cell.leakage is not None
        colour = GREY
        if cell.leakage is not None:
            much = 1.0 if cell.unit == "dB" else 0.1
            colour = "white" if cell.leakage <= 0 else STRONG if cell.leakage > much else PALE
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#c8c8c8", lw=0.6))
        shown = cell.why.replace("\n", " ") if cell.leakage is None else f"{cell.leakage:+.2f}"
        if cell.leakage is not None and cell.unit:
            shown += f" {cell.unit}"
        axes.text(
            x + 0.5, y + 0.5, shown, ha="center", va="center",
            fontsize=SMALL if known else SMALL - 1.2, color="black" if known else "#707070",
        )  # fmt: skip
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows, fontsize=TEXT)
    axes.set_xticks(
        [i + 0.5 for i in range(len(columns))], columns, fontsize=SMALL, rotation=40, ha="left"
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    write_title(figure, title or "Which attack reads what, and how far above its floor")
    write_caption(figure, lines)
    return figure
