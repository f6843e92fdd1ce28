"""Numbers beside their floors, for attacks that recover no images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from fedre_privacy.core.errors import ConfigError

from .style import BLUE, LONGEST, SMALL, VERMILLION, framed, plain, tidy


@dataclass(frozen=True)
class Bar:
    """One measure: its mean, 95 % interval of the mean, floor, and number of cases."""

    name: str
    value: float
    interval: tuple[float, float] | None
    floor: float | None
    n: int


def measure_chart(bars: Sequence[Bar], *, title: str, caption: str = "") -> Figure:
    """Draw measures as points with intervals; a short red line marks what no upload is needed for.

    Raises:
        ConfigError: no measure.
    """
    if not bars:
        raise ConfigError("There is nothing to draw: the attack has no measure with a value.")
    figure = framed(6.4, 0.36 * len(bars) + 0.55, title, caption)
    axes = figure.subplots()
    for row, bar in enumerate(reversed(bars)):
        if bar.interval is not None:
            axes.plot(bar.interval, (row, row), color=BLUE, lw=1.6, zorder=2)
        axes.plot(bar.value, row, "o", color=BLUE, ms=6, zorder=3)
        if bar.floor is not None:
            axes.plot((bar.floor, bar.floor), (row - 0.32, row + 0.32), color=VERMILLION, lw=2)
        axes.text(
            1.02, row, f"{bar.value:.3f}  n = {bar.n}", fontsize=SMALL, va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.set_yticks(range(len(bars)), [plain(bar.name, LONGEST) for bar in reversed(bars)])
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.set_xlabel("measure (red: floor)")
    tidy(axes)
    return figure
