"""Leakage against the attacked round, or against the number of rounds that the attack reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedre_privacy.core.errors import ConfigError

from .style import CYCLE, SMALL, TEXT, framed_figure, plain, settle, tidy

MARKERS = "osD^vPX"
COLUMNS = 3


@dataclass(frozen=True)
class RoundPoint:
    """One attack on one variant at one number of rounds.

    Args:
        panel: the measure, with its unit; one panel each.
        line: what is compared; one line each.
        rounds: the attacked round, or how many rounds the attack reads.
        over: leakage over the floor, in the measure's unit; 0 is the floor.
        spread: sd over seeds, or None for one seed.
    """

    panel: str
    line: str
    rounds: int
    over: float
    spread: float | None = None


def leakage_by_rounds(
    points: Sequence[RoundPoint], *, across: str, caption: str = "", title: str = ""
) -> Figure:
    """Draw figure D: one panel per measure, leakage over the floor against rounds.

    Args:
        across: what the rounds are, as the label of the axis.

    Raises:
        ConfigError: no line with two numbers of rounds.
    """
    lines = list(dict.fromkeys(p.line for p in points))
    names = list(dict.fromkeys(p.panel for p in points))
    if not any(len({p.rounds for p in points if p.line == line}) > 1 for line in lines):
        raise ConfigError(
            "There is nothing to draw against rounds: no attack was run at two numbers of them."
        )
    columns = 2 if len(names) == 4 else min(COLUMNS, len(names))
    legend, deep = 0.17 * len(lines) + 0.1, -(-len(names) // columns)
    height = 2.45 * deep + legend
    figure = framed_figure(max(3.1 * columns, 5.0), height, title or f"Leakage: {across}", caption)
    ticks = sorted({p.rounds for p in points})
    for number, name in enumerate(names):
        axes = figure.add_subplot(deep, columns, number + 1)
        axes.axhline(0, color="#888888", lw=0.8, ls=":")
        for place, line in enumerate(lines):
            own = sorted(
                (p for p in points if p.line == line and p.panel == name), key=lambda p: p.rounds
            )
            colour = CYCLE[place % len(CYCLE)]
            axes.errorbar(
                [p.rounds for p in own], [p.over for p in own],
                yerr=[p.spread or 0.0 for p in own] if any(p.spread for p in own) else None,
                color=colour, marker=MARKERS[place % len(MARKERS)], ms=4, lw=1.2, capsize=2,
                ls="-" if place < len(CYCLE) else "--", label=plain(line),
            )  # fmt: skip
        if len(ticks) <= 6:
            axes.set_xticks(ticks)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(plain(name), fontsize=TEXT, loc="left")
        axes.set_xlabel(across)
        if number % columns == 0:
            axes.set_ylabel("over the floor")
        tidy(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0, settle(figure, legend)),
        fontsize=SMALL, frameon=False, labelspacing=0.35,
    )  # fmt: skip
    return figure
