"""Figures of the pages in this folder: figures.yaml says what each shows of data/*.csv.

`build.py` draws what has changed. A figure has no background, and colours of its own for readers
who prefer dark pages.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
INTERVAL = re.compile(rf"\[\s*({NUMBER})[^,\]]*,\s*({NUMBER})[^\]]*\]")
SPREAD = re.compile(rf"(?:±|\+-)\s*({NUMBER})")
BRACKETS = re.compile(rf"\(({NUMBER})")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True)
class Cell:
    """A number of a table: ``1.2 [0.9, 1.5]``, ``1.2 ± 0.3``, either with ``(1.0)`` behind it."""

    value: float
    low: float | None = None
    high: float | None = None
    guess: float | None = None
    """What stands in round brackets."""


def read_cell(text: str) -> Cell | None:
    """The numbers of a cell that begins with one; None where it begins with something else."""
    text = THOUSANDS.sub("", text.replace("*", "").replace("'", ""))
    start = re.match(NUMBER, text)
    if not start:
        return None
    value = float(start[0])
    low = high = None
    if interval := INTERVAL.search(text):
        low, high = float(interval[1]), float(interval[2])
    elif spread := SPREAD.search(text):
        low, high = value - float(spread[1]), value + float(spread[1])
    brackets = BRACKETS.search(text)
    return Cell(value, low, high, float(brackets[1]) if brackets else None)


@dataclass(frozen=True)
class Source:
    """Which numbers of a table are drawn."""

    table: str
    """The CSV file's name without its end."""

    values: Mapping[str, str]
    """Names in the legend, and the column that each stands for; a name has `{column}` in it where
    every value of that column is a line of its own."""

    label: str = ""
    """A row's name, with `{column}` for a cell; empty: the first cell."""

    rows: Mapping[str, str] = field(default_factory=dict)
    """First cells of the rows that are drawn, with their names; empty: all rows."""

    where: Mapping[str, list[str]] = field(default_factory=dict)
    """Columns, and the cells of which a row has one."""

    across: str = ""
    """The column of numbers that the horizontal axis shows; empty: rows stand one below another."""

    guess: str = ""
    """The column of the guess, or `brackets`."""

    of: str = ""
    """The column that values are drawn as percentages of."""


@dataclass(frozen=True)
class Figure:
    """What a figure shows."""

    alt: str
    axis: str
    """What the numbers are."""

    sources: tuple[Source, ...]
    below: str = ""
    """What the horizontal axis is, where `across` names a column."""

    upright: str = "guess"
    """What a source's `guess` is; it is drawn as an upright."""

    line: Mapping[str, float] = field(default_factory=dict)
    """One line to compare with: its name and where it stands."""

    log: bool = False
    span: tuple[float, float] | None = None
    """From where to where the axis of the numbers goes; None: as far as they need."""


@dataclass(frozen=True)
class Mark:
    """One number of a figure."""

    series: str
    at: str | float
    cell: Cell


def read_figures(path: Path) -> dict[str, Figure]:
    """The figures that a file describes, by name."""
    figures = {}
    for name, one in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        sources = tuple(Source(**source) for source in one.pop("from"))
        figures[name] = Figure(sources=sources, **one)
    return figures


def plain(text: str) -> str:
    return re.sub(r"[`*]", "", text)


def marks(source: Source, data: Path) -> Iterator[Mark]:
    """The numbers of one table; a first cell that is empty is that of the row above."""
    above = ""
    with (data / f"{source.table}.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        first = (reader.fieldnames or [""])[0]
        for row in reader:
            row[first] = above = row[first] or above
            if source.rows and row[first] not in source.rows:
                continue
            if any(
                row[c] not in (w if isinstance(w, list) else [w]) for c, w in source.where.items()
            ):
                continue
            name = source.rows.get(row[first]) or source.label.format_map(row) or row[first]
            at = read_cell(row[source.across]) if source.across else None
            for series, column in source.values.items():
                if cell := number(row, column, source):
                    yield Mark(plain(series.format_map(row)), at.value if at else plain(name), cell)


def names(figure: Figure, shown: list[Mark]) -> list[str]:
    """The names of the legend, as tables have them one after another."""
    order = [name for source in figure.sources for name in source.values]
    drawn = dict.fromkeys(mark.series for mark in shown)
    return sorted(drawn, key=lambda name: order.index(name) if name in order else len(order))


def number(row: Mapping[str, str], column: str, source: Source) -> Cell | None:
    """A cell as it is drawn."""
    cell = read_cell(row[column])
    if cell is None:
        return None
    guess = read_cell(row[source.guess]) if source.guess not in ("", "brackets") else None
    drawn = cell.guess if source.guess == "brackets" else guess and guess.value
    whole = read_cell(row[source.of]) if source.of else None
    scale = 100 / whole.value if whole else 1
    return Cell(cell.value * scale, cell.low, cell.high, drawn)


def key(figure: Figure, data: Path) -> str:
    """A hash of what a figure shows and of how it is drawn, whichever Matplotlib draws it."""
    shown = [asdict(mark) for source in figure.sources for mark in marks(source, data)]
    text = json.dumps([asdict(figure), shown, Path(__file__).read_text(encoding="utf-8")])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_current(path: Path, figure: Figure, data: Path) -> bool:
    """Whether a file is the drawing of a figure of these data."""
    return path.is_file() and f"<!-- {key(figure, data)} -->" in path.read_text(encoding="utf-8")


# --- drawing --------------------------------------------------------------------------------------

INK, PALE = "#010101", "#020202"
"""Stand for the colours of words and of lines behind numbers until a page's scheme is known."""

LIGHT, DARK = {INK: "#222222", PALE: "#d0d0d0"}, {INK: "#e4e4e4", PALE: "#4a4d59"}
COLOURS = ("#3d7fc4", "#c2641a", "#2b8f66", "#9a62bd", "#b8860b", "#7a7f8c")
"""Seen on white and on the dark page alike, with a contrast of three at least."""

SHAPES = "osD^vP"
WIDTH, MARGIN, ROW, STEP = 7.5, 1.0, 0.17, 0.11
"""In inches: a figure, what is around its rows, a row, and each series of it."""

STYLE = {
    "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "results", "text.color": INK,
    "axes.labelcolor": INK, "axes.edgecolor": PALE, "xtick.color": INK, "ytick.color": INK,
    "grid.color": PALE, "grid.linewidth": 0.6, "axes.spines.top": False,
    "axes.spines.right": False, "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"],
}  # fmt: skip


def draw(figure: Figure, data: Path) -> str:
    """A figure as SVG; the same bytes whenever the same Matplotlib draws the same data.

    Raises:
        ValueError: nothing of its tables can be drawn.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    shown = [mark for source in figure.sources for mark in marks(source, data)]
    if not shown:
        raise ValueError(f"nothing to draw in {[source.table for source in figure.sources]}")
    with matplotlib.rc_context(STYLE):
        rows = list(dict.fromkeys(mark.at for mark in shown))
        series = names(figure, shown)
        across = bool(figure.sources[0].across)
        height = 3.4 if across else MARGIN + len(rows) * (ROW + STEP * len(series))
        canvas = Canvas(figsize=(WIDTH, height), layout=ConstrainedLayoutEngine(w_pad=0.15))
        axes = canvas.add_subplot()
        (draw_lines if across else draw_rows)(axes, figure, shown, rows, series)
        axes.grid(axis="y" if across else "x")
        axes.set_axisbelow(True)
        named = len(axes.get_legend_handles_labels()[1])
        if named:
            canvas.legend(loc="outside upper left", ncols=min(named, 4), frameon=False)
        written = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        canvas.savefig(written, format="svg", transparent=True, metadata=nothing)
    return finish(written.getvalue(), figure.alt, key(figure, data))


def draw_rows(
    axes: Any, figure: Figure, shown: list[Mark], rows: list[Any], series: list[str]
) -> None:
    """Rows one below another, a mark for each series with its interval, the guess as an upright."""
    apart = 0.62 / len(series)
    guessed = False
    for i, one in enumerate(series):
        own = [mark for mark in shown if mark.series == one]
        at = [rows.index(m.at) + (i - (len(series) - 1) / 2) * apart for m in own]
        look = {"color": COLOURS[i], "marker": SHAPES[i], "markersize": 4.5, "linestyle": "none"}
        axes.plot([m.cell.value for m in own], at, label=one or None, zorder=3, **look)
        for mark, y in zip(own, at, strict=True):
            if mark.cell.low is not None:
                ends = [mark.cell.low, mark.cell.high]
                axes.plot(ends, [y, y], color=COLOURS[i], linewidth=1.4, zorder=2)
            if mark.cell.guess is not None:
                name = None if guessed else figure.upright
                axes.plot(mark.cell.guess, y, "|", color=INK, markersize=8, label=name, zorder=2)
                guessed = True
    for name, where in figure.line.items():
        axes.axvline(where, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=name, zorder=1)
    axes.set_yticks(range(len(rows)), [str(row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(length=0)
    axes.figure.supxlabel(figure.axis, fontsize=9)
    if figure.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,g}")
    if figure.span:
        axes.set_xlim(*figure.span)


def draw_lines(
    axes: Any, figure: Figure, shown: list[Mark], rows: list[Any], series: list[str]
) -> None:
    """A line for each series over a column of numbers, which double or grow tenfold."""
    for i, one in enumerate(series):
        own = [mark for mark in shown if mark.series == one]
        at = [mark.at for mark in own]
        look = {"color": COLOURS[i], "marker": SHAPES[i], "markersize": 4.5, "linewidth": 1.6}
        axes.plot(at, [m.cell.value for m in own], label=one, **look)
    for name, where in figure.line.items():
        axes.axhline(where, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=name, zorder=1)
    ticks = sorted(rows)
    axes.set_xscale("log", base=10 if max(ticks) / max(min(ticks), 1) > 300 else 2)
    if len(ticks) <= 10 and max(ticks) / max(min(ticks), 1) <= 300:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    else:
        axes.xaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()
    axes.set_xlabel(figure.below)
    axes.set_ylabel(figure.axis)
    if figure.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
    if figure.span:
        axes.set_ylim(*figure.span)


def finish(svg: str, alt: str, key: str) -> str:
    """An SVG with a name, its hash, and colours that follow the reader's scheme."""
    svg = re.sub(r"^.*?(?=<svg )", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for stands, name in ((INK, "ink"), (PALE, "pale")):
        svg = svg.replace(stands, f"var(--{name})")
    light, dark = (f":root{{--ink:{of[INK]};--pale:{of[PALE]}}}" for of in (LIGHT, DARK))
    style = f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"
    head = f"<!-- {key} -->\n<title>{html.escape(alt)}</title>\n{style}"
    svg = re.sub(
        r"(<svg [^>]*>)", lambda found: f"{found[1]}\n{head}", svg, count=1, flags=re.DOTALL
    )
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
