"""Numbers beside their floors, for attacks that recover no images."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from fedre_privacy.core.errors import ConfigError

from ..measures import Measure, group_name
from .style import BLUE, SMALL, VERMILLION, framed_figure, name_rows, tidy


def measure_chart(measures: Sequence[Measure], *, title: str, caption: str = "") -> Figure:
    """Draw measures as points with intervals; a short red line marks what no upload is needed for.

    Raises:
        ConfigError: no measure has a value.
    """
    bars = [(measure, measure.value) for measure in measures if measure.value is not None]
    if not bars:
        raise ConfigError("There is nothing to draw: the attack has no measure with a value.")
    figure = framed_figure(6.4, 0.36 * len(bars) + 0.55, title, caption)
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
    groups = [f", {group_name(bar.group)}" if several else "" for bar, _ in bars]
    name_rows(axes, [bar.heading + group for (bar, _), group in zip(bars, groups, strict=True)])
    axes.set_xlabel("measure (red: floor)")
    tidy(axes)
    return figure
