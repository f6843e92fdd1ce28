"""Accuracy of several trainings in one picture, and of the clients of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedre_privacy.core.errors import ConfigError, IncompatibleError

from .style import BLUE, CYCLE, SMALL, VERMILLION, panels, tidy, wrap_text

DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, eq=False)
class AccuracyCurve:
    """Trainings that differ in their seed alone.

    Args:
        label: what tells them from the others.
        frame: rows with the columns ``round``, ``x`` (the round, or traffic), ``accuracy`` (0 to 1)
            and ``seed``; seeds are taken together round by round.
    """

    label: str
    frame: pd.DataFrame


def learning_curves(
    curves: Sequence[AccuracyCurve],
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
        ranged = curve.frame["seed"].nunique() > 1
        dash = DASHES[number // len(CYCLE) % len(DASHES)]
        _line(axes, x, over, dash, colour, wrap_text(curve.label), ranged=ranged)
    for height, label in ((chance, "chance"), (target, "target")):
        if height is not None:
            dash = ":" if label == "chance" else "--"
            axes.axhline(height, color="#666666", linestyle=dash, linewidth=1, label=label)
    axes.set_ylim(0, 1)
    axes.set_xlabel(across)
    axes.set_ylabel("test accuracy (mean over clients)")
    if across == "round":
        _whole_rounds(axes)
    axes.legend(fontsize=SMALL, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    tidy(axes)
    return figure


def _line(
    axes: Axes,
    x: NDArray[np.float64],
    over: pd.DataFrame,
    dash: str,
    colour: str,
    label: str,
    *,
    ranged: bool,
) -> None:
    """Draw the column mean, and a band from min to max."""
    marker = "o" if len(x) <= 25 else None
    axes.plot(
        x,
        over["mean"].to_numpy(),
        dash,
        color=colour,
        linewidth=1.5,
        label=label,
        marker=marker,
        markersize=2.5,
    )
    if ranged:
        low, high = over["min"].to_numpy(), over["max"].to_numpy()
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def _whole_rounds(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))


_MOMENTS = {
    "acc_post_local": "after local training",
    "acc_post_broadcast": "after the broadcast",
    "acc_shared_post_local": "after local training, shared test set",
    "acc_shared_post_broadcast": "after the broadcast, shared test set",
}


def training_curves(
    frame: pd.DataFrame, *, title: str = "Training", caption: str = "", chance: float | None = None
) -> Figure:
    """Draw accuracy per round at both moments of evaluation, and the training loss.

    Args:
        frame: one row per round with the columns ``round``, ``acc_post_local``,
            ``acc_post_broadcast`` (0 to 1, mean over clients; absent in rounds not evaluated), the
            same on the shared test set (``acc_shared_post_local``, ...) where it was measured, and
            ``loss``. Several rows of a round (seeds) are drawn as mean and range.
        chance: accuracy of guessing, drawn as a dotted line.

    Raises:
        IncompatibleError: a column is absent.
    """
    absent = [name for name in ("round", "loss") if name not in frame.columns]
    moments = [name for name in _MOMENTS if name in frame.columns]
    moments = [name for name in moments if "shared" not in name or frame[name].notna().any()]
    if absent or not moments:
        wanted = "round, loss and one of " + ", ".join(_MOMENTS)
        raise IncompatibleError(
            f"Training metrics have the columns {', '.join(map(str, frame.columns))}; needed are "
            f"{wanted}."
        )
    figure, (left, right) = panels(2, title, caption)
    curves = [(left, name, _MOMENTS[name]) for name in moments] + [(right, "loss", "loss")]
    colours = (*CYCLE[: len(moments)], CYCLE[0])
    for (axes, column, label), colour in zip(curves, colours, strict=True):
        known = frame[["round", column]].apply(pd.to_numeric).dropna()
        over = known.groupby("round")[column].agg(["mean", "min", "max"])
        dash = "--" if column.endswith("broadcast") else "-"
        x = over.index.to_numpy(dtype=float)
        _line(axes, x, over, dash, colour, label, ranged=len(known) > len(over))
    if chance is not None:
        left.axhline(chance, color="#666666", linestyle=":", linewidth=1, label="chance")
    left.set_ylim(0, 1)
    left.set_ylabel("test accuracy (mean over clients)")
    left.legend(fontsize=SMALL, frameon=False, loc="best")
    right.set_ylabel("training loss")
    rounds = frame["round"].astype(float)
    for axes in (left, right):
        axes.set_xlabel("round")
        if rounds.nunique() == 1:
            axes.set_xlim(rounds.iloc[0] - 1, rounds.iloc[0] + 1)
        _whole_rounds(axes)
        tidy(axes)
    right.set_ylim(bottom=0)
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
