"""Intervals of epsilon: from what an audit has shown to what is promised."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .style import BLUE, LONGEST, SMALL, VERMILLION, framed, plain, tidy


def audit_chart(
    rows: Sequence[tuple[str, float, float, float]], *, title: str, caption: str = ""
) -> Figure:
    """Draw one row for each claim: shown (filled), promised (open), what could be shown (cross).

    A claim that is refuted, shown above promised, is red.

    Args:
        rows: name, epsilon shown at least, promised at most, and the most that the design of the
            audit could have shown.
    """
    figure = framed(5.4, 0.4 * len(rows) + 0.9, title, caption)
    axes = figure.subplots()
    for row, (_, shown, promised, ceiling) in enumerate(reversed(rows)):
        colour = VERMILLION if shown > promised else BLUE
        axes.plot((shown, promised), (row, row), color=colour, lw=2.2, zorder=2)
        axes.plot(shown, row, ">", color=colour, ms=7, zorder=3)
        axes.plot(promised, row, "<", color=colour, mfc="white", ms=7, zorder=3)
        axes.plot(ceiling, row, "x", color="#666666", ms=6, zorder=3)
        axes.text(
            1.02, row, f"[{shown:.2f}, {promised:.2f}]", fontsize=SMALL, va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [plain(name, LONGEST) for name, *_ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(0, 1.3 * max(max(row[1:]) for row in rows))
    axes.set_xlabel("epsilon   > shown at least   < promised at most   x could have been shown")
    tidy(axes)
    return figure
