"""How every figure looks: sizes, colours that colour-blind readers can tell apart, saving."""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedre_privacy.core.files import write_frame, write_with

# Okabe and Ito, "Color universal design", 2008.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)

TEXT, SMALL, TITLE = 8.0, 7.0, 10.0
"""Font sizes (pt) at the printed size of the figure."""

_LINE = 0.135
"""Height of a line of caption (in)."""


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches that no global state knows about."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def wrap(text: str, width: float) -> list[str]:
    """Break a caption into lines that fit a width in inches, keeping its own line breaks."""
    per_line = max(20, int((width - 0.24) * 19))
    return [part for line in text.splitlines() for part in textwrap.wrap(line, per_line) or [""]]


def caption_height(lines: list[str]) -> float:
    """Height (in) of a caption, with the gap above it."""
    return 0.12 + _LINE * len(lines) if lines else 0.0


def write_title(figure: Figure, title: str, left: float = 0.12) -> None:
    """Set the title at the head of a figure, smaller where it would not fit."""
    width, height = figure.get_size_inches()
    size = min(TITLE, (width - 2 * left) * 72 / (0.72 * max(len(title), 1)))
    figure.text(left / width, 1 - 0.1 / height, title, fontsize=size, weight="bold", va="top")


def write_caption(figure: Figure, lines: list[str], left: float = 0.12) -> None:
    """Set caption lines at the foot of a figure, the flags (``NAME: ...``) in bold red."""
    width, height = figure.get_size_inches()
    for row, line in enumerate(reversed(lines)):
        flagged = line.startswith(("COUNTERFACTUAL:", "ORACLE:"))
        figure.text(
            left / width,
            (0.08 + _LINE * row) / height,
            line,
            fontsize=SMALL,
            va="bottom",
            color=VERMILLION if flagged else "#333333",
            weight="bold" if flagged else "normal",
        )


def panels(
    count: int, title: str, caption: str, *, left: float = 0.62
) -> tuple[Figure, list[Axes]]:
    """Return a figure with plots side by side, each with a left margin in inches."""
    width = 4.4 if count == 1 else 3.5 * count
    lines = wrap(caption, width)
    foot, top, plot = caption_height(lines) + 0.48, 0.42, 2.3
    height = foot + plot + top
    figure = blank(width, height)
    write_title(figure, title)
    write_caption(figure, lines)
    each = width / count
    return figure, [
        figure.add_axes(
            (
                (number * each + left) / width,
                foot / height,
                (each - left - 0.18) / width,
                plot / height,
            )
        )
        for number in range(count)
    ]


def tidy(axes: Axes) -> None:
    """Thin frame, light grid, small labels."""
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", labelsize=SMALL)
    axes.xaxis.label.set_fontsize(TEXT)
    axes.yaxis.label.set_fontsize(TEXT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save_figure(
    figure: Figure, path_stem: Path | str, *, data: pd.DataFrame | None = None, dpi: int = 200
) -> list[Path]:
    """Write a figure as PNG and PDF, and its data as CSV beside them, each file atomically.

    Args:
        figure: from any function of this package.
        path_stem: path without ending; ``a/b`` gives ``a/b.png`` and ``a/b.pdf``.
        data: what the figure shows, for ``a/b.csv``.
        dpi: of the PNG (pixels per inch).

    Returns:
        The files written.
    """
    stem = Path(path_stem)
    written = []
    for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        path = stem.with_name(f"{stem.name}.{ending}")
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            write_with(
                path,
                lambda temporary, e=ending, m=metadata: figure.savefig(  # type: ignore[misc]
                    temporary, format=e, dpi=dpi, metadata=m
                ),
            )
        written.append(path)
    if data is not None:
        path = stem.with_name(f"{stem.name}.csv")
        write_frame(path, data)
        written.append(path)
    return written
