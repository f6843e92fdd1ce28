"""Accuracy of several trainings in one picture, and of the clients of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedre_privacy.core.errors import ConfigError

from .style import BLUE, CYCLE, SMALL, VERMILLION, panels, tidy, wrapped

DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, eq=False)
class Curve:
    """Trainings that differ in their seed alone.

    Args:
        label: what tells them from the others.
        frame: rows with the columns ``round``, ``x`` (the round, or traffic), ``accuracy`` (0 to 1)
            and ``seed``; seeds are taken together round by round.
    """

    label: str
    frame: pd.DataFrame


def learning_curves(
    curves: Sequence[Curve],
    *,
    across: str,
    title: str = "",
    caption: str = "",
    chance: float | None = None,
    target: float | None = None,
) -> Figure:
    """Draw mean accuracy over seeds, with a band from the lowest to the highest seed.

    Args:
        across: label of the x axis.
        chance, target: accuracies drawn as horizontal lines.

    Raises:
        ConfigError: nothing to draw.
    """
    if not curves or all(curve.frame.empty for curve in curves):
        raise ConfigError("There is nothing to draw: no run was evaluated in any round.")
    figure, (axes,) = panels(1, title, caption)
    figure.set_size_inches(6.0, figure.get_size_inches()[1] + 0.6)
    for number, curve in enumerate(curves):
        colour = CYCLE[number % len(CYCLE)]
        rounds = curve.frame.groupby("round")
        over = rounds["accuracy"].agg(["mean", "min", "max"])
        x = rounds["x"].mean().to_numpy(dtype=float)
        axes.plot(
            x, over["mean"].to_numpy(), DASHES[number // len(CYCLE) % len(DASHES)], color=colour,
            linewidth=1.5, label=wrapped(curve.label), marker="o" if len(x) <= 25 else None,
            markersize=2.5,
        )  # fmt: skip
        if curve.frame["seed"].nunique() > 1:
            low, high = over["min"].to_numpy(), over["max"].to_numpy()
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    for height, label in ((chance, "chance"), (target, "target")):
        if height is not None:
            dash = ":" if label == "chance" else "--"
            axes.axhline(height, color="#666666", linestyle=dash, linewidth=1, label=label)
    axes.set_ylim(0, 1)
    axes.set_xlabel(across)
    axes.set_ylabel("test accuracy (mean over clients)")
    if across == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
    axes.legend(fontsize=SMALL, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    tidy(axes)
    return figure


def client_accuracy(frame: pd.DataFrame, *, title: str = "", caption: str = "") -> Figure:
    """Draw each client's accuracy at both moments of the last round that was evaluated.

    Args:
        frame: rows of a run's ``clients.csv``: ``round``, ``client``, ``acc_post_local`` and
            ``acc_post_broadcast``; a client without test images has no value.

    Raises:
        ConfigError: no row.
    """
    if frame.empty:
        raise ConfigError("There is nothing to draw: no round was evaluated.")
    last = frame[frame["round"] == frame["round"].max()]
    figure, (axes,) = panels(1, title, caption)
    for column, colour, mark, label in (
        ("acc_post_local", BLUE, "o", "after local training"),
        ("acc_post_broadcast", VERMILLION, "x", "after the broadcast"),
    ):
        axes.plot(last["client"], last[column], mark, color=colour, markersize=4, label=label)
        axes.axhline(last[column].mean(), color=colour, linewidth=0.8, linestyle=":")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("client")
    axes.set_ylabel(f"test accuracy, round {int(last['round'].iloc[0])}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, steps=[1, 2, 5, 10]))
    axes.legend(fontsize=SMALL, frameon=False, loc="best")
    tidy(axes)
    return figure
