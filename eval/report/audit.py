"""Epsilon of an audit: what was shown, what is promised, what the audit could have shown."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from .style import BLUE, SMALL, VERMILLION, framed_figure, name_rows, tidy


def audit_chart(
    shown: float, promised: float | None, ceiling: float, *, refuted: bool, trials: int, title: str,
    caption: str = "",
) -> Figure:  # fmt: skip
    """Draw a bar for each number, with its value beside it.

    What is shown is red where it refutes the claim.

    Args:
        shown: epsilon shown at least.
        promised: epsilon at most; None: nothing is promised.
        ceiling: the most that so many trials could have shown.
        refuted: whether the audit's verdict is that the claim does not hold.
    """
    bars = [("shown at least", shown, VERMILLION if refuted else BLUE)]
    if promised is not None:
        bars.append(("promised at most", promised, "#8c8c8c"))
    bars.append((f"{trials:,} trials could show", ceiling, "#d0d0d0"))
    most = max((value for _, value, _ in bars if math.isfinite(value)), default=0.0) or 1.0
    figure = framed_figure(4.4, 0.3 * len(bars) + 0.6, title, caption)
    axes = figure.subplots()
    for row, (_, value, colour) in enumerate(reversed(bars)):
        length = value if math.isfinite(value) else 1.15 * most
        axes.barh(row, length, height=0.6, color=colour)
        said = f"{value:.2f}" if math.isfinite(value) else "without limit"
        axes.annotate(
            said, (length, row), (4, 0), textcoords="offset points", va="center", fontsize=SMALL
        )
    name_rows(axes, [name for name, *_ in bars])
    axes.set_xlim(0, 1.3 * most)
    axes.set_xlabel("epsilon")
    tidy(axes)
    return figure
