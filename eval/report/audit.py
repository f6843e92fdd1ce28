"""Intervals of epsilon: from what an audit has shown to what is promised."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .style import BLUE, SMALL, VERMILLION, framed_figure, name_rows, tidy


def audit_chart(
    rows: Sequence[tuple[str, float, float | None, float]], *, title: str, caption: str = ""
) -> Figure:
    """Draw one row for each claim: shown (filled), promised (open), what could be shown (cross).

    A claim that is refuted, shown above promised, is red.

    Args:
        rows: name, epsilon shown at least, promised at most (None: nothing is), and the most that
            the design of the audit could have shown.
    """
    figure = framed_figure(5.4, 0.4 * len(rows) + 0.9, title, caption)
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
    name_rows(axes, [name for name, *_ in rows])
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(
        0, 1.3 * max(max(shown, promised or 0, most) for _, shown, promised, most in rows)
    )
    axes.set_xlabel("epsilon   > shown at least   < promised at most   x could have been shown")
    tidy(axes)
    return figure
