"""How every figure looks: sizes, colours that colour-blind readers can tell apart, saving."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedre_privacy.core.files import write_frame, write_text, write_with
from fedre_privacy.core.safe_text import visible

from .scheme import scheme_svg

# Okabe and Ito, "Color universal design", 2008.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)

TEXT, SMALL, TITLE = 8.0, 7.0, 10.0
"""Font sizes (pt) at the printed size of the figure."""

LONGEST = 28
"""Characters of a name beside an axis."""

_MARGIN, _HEAD, _LINE = 0.12, 0.38, 0.135
"""Beside title and caption, height of the title, and of a line of caption (in)."""


def plain(text: str, longest: int | None = None) -> str:
    """Return a text as matplotlib draws it letter by letter: a dollar begins no formula.

    Args:
        longest: characters from which it is cut, with dots at its end.
    """
    shown = visible(text)
    if longest is not None and len(shown) > longest:
        shown = f"{shown[: longest - 3]}..."
    return shown.replace("$", r"\$")


def wrap_text(text: str) -> str:
    """Return a text as `plain` shows it, in at most six lines of `LONGEST` characters."""
    lines = textwrap.wrap(text, LONGEST, max_lines=6, placeholder="...")
    return "\n".join(plain(line) for line in lines)


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches that no global state knows about."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def framed_figure(
    width: float, height: float, title: str, caption: str = "", *, images: bool = False
) -> Figure:
    """Return a figure of `width` by `height` (in) with a title at its head, a caption at its foot.

    Title and caption add to the height. What is between them is laid out by matplotlib's
    constrained layout. Captions keep their line breaks; ``COUNTERFACTUAL: ...`` is bold and red.
    """
    per_line = int((width - 2 * _MARGIN) * 18)
    lines = [
        (line, part.startswith("COUNTERFACTUAL:"))
        for part in caption.splitlines()
        for line in textwrap.wrap(visible(part), per_line) or [""]
    ]
    foot = _LINE * len(lines) + (_MARGIN if lines else 0)
    whole = _HEAD + height + foot
    figure = blank(width, whole)
    figure.set_layout_engine(
        "compressed" if images else "constrained",
        rect=(_MARGIN / 2 / width, foot / whole, 1 - _MARGIN / width, height / whole),
        w_pad=_MARGIN / 4 if images else _MARGIN / 2,
        h_pad=_MARGIN / 4,
    )
    left, head = _MARGIN / width, plain(title)
    size = min(TITLE, (width - 2 * _MARGIN) * 72 / (0.72 * max(len(head), 1)))
    figure.text(left, 1 - 0.1 / whole, head, fontsize=size, weight="bold", va="top")
    for row, (line, flagged) in enumerate(reversed(lines)):
        figure.text(
            left,
            (_MARGIN / 2 + _LINE * row) / whole,
            plain(line),
            fontsize=SMALL,
            va="bottom",
            color=VERMILLION if flagged else "#333333",
            weight="bold" if flagged else "normal",
        )
    return figure


def settle(figure: Figure, below: float = 0.0) -> float:
    """Lay a figure out for good: what is added later moves nothing, and drawing it is quick.

    Args:
        below: height to keep free between what is drawn and the caption (in).

    Returns:
        Where that begins, as a share of the figure's height.
    """
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    left, low, wide, high = engine.get()["rect"]
    share = below / figure.get_figheight()
    engine.set(rect=(left, low + share, wide, high - share))
    if figure.axes:  # a sheet on which every target diverged has none
        engine.execute(figure)
    figure.set_layout_engine("none")
    return float(low)


def panels(count: int, title: str, caption: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with plots side by side."""
    figure = framed_figure(4.4 if count == 1 else 3.5 * count, 2.75, title, caption)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def tidy(axes: Axes) -> None:
    """Thin frame, light grid, small labels."""
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", labelsize=SMALL)
    axes.xaxis.label.set_fontsize(TEXT)
    axes.yaxis.label.set_fontsize(TEXT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name rows from the top down; row 0 is the lowest."""
    axes.set_yticks(range(len(names)), [plain(name, LONGEST) for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)


def save_figure(
    figure: Figure, path_stem: Path | str, *, data: pd.DataFrame | None = None, dpi: int = 200
) -> list[Path]:
    """Write a figure as PNG, PDF and SVG, and its data as CSV beside them, each file atomically.

    The SVG follows the colour scheme of whoever looks at it; PNG and PDF are for paper.

    Args:
        path_stem: path without ending; ``a/b`` gives ``a/b.png``, ``a/b.pdf`` and ``a/b.svg``.
        data: what the figure shows, for ``a/b.csv``.

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
    path = stem.with_name(f"{stem.name}.svg")
    write_text(path, scheme_svg(figure, dpi))
    written.append(path)
    if data is not None:
        path = stem.with_name(f"{stem.name}.csv")
        write_frame(path, data)
        written.append(path)
    return written
