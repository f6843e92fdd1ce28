"""Lines: accuracy over rounds, leakage over rounds, and the ROC of membership attacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedre_privacy.core.errors import ConfigError

from ..lower_bounds import share_interval
from ..roc import roc
from .style import (
    BLUE,
    CYCLE,
    SMALL,
    TEXT,
    VERMILLION,
    framed,
    panels,
    plain,
    settle,
    tidy,
    wrapped,
)

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
    figure = framed(max(3.1 * columns, 5.0), height, title or f"Leakage: {across}", caption)
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


def roc_figure(
    scores: Mapping[str, tuple[Tensor, Tensor]], *, title: str, caption: str = ""
) -> Figure:
    """Draw a line for each attack, its pointwise 95 % Clopper-Pearson band, and chance.

    Args:
        scores: name to the scores of members (n,) and of others (m,), comparable among each other;
            the first one is drawn with its band.

    Raises:
        ConfigError: no attack has both kinds.
    """
    usable = {name: pair for name, pair in scores.items() if len(pair[0]) and len(pair[1])}
    if not usable:
        raise ConfigError("There is nothing to draw: no scores of both members and others.")
    least = 1 / max(max(len(inside), len(outside)) for inside, outside in usable.values())
    least = 10 ** math.floor(math.log10(least))
    figure = framed(4.4, 3.7, title, caption)
    axes = figure.subplots()
    axes.plot((least, 1), (least, 1), color="#888888", lw=0.9, ls=":", label="chance")
    for number, (name, (inside, outside)) in enumerate(usable.items()):
        fpr, tpr = roc(inside, outside)
        colour = CYCLE[number % len(CYCLE)]
        axes.step(
            fpr.clamp(min=least), tpr.clamp(min=least), where="post", color=colour,
            ls="-" if number < len(CYCLE) else "--", lw=1.6 if number == 0 else 1.0,
            label=plain(name),
        )  # fmt: skip
        if number == 0:
            found = (tpr * len(inside)).round().to(torch.int64).tolist()
            ends = torch.tensor([share_interval(k, len(inside)) for k in found])
            axes.fill_between(
                fpr.clamp(min=least), ends[:, 0].clamp(min=least), ends[:, 1], step="post",
                color=colour, alpha=0.15, lw=0,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least, 1)
    axes.set_ylim(least, 1.05)
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("true-positive rate")
    axes.legend(fontsize=SMALL, frameon=False, loc="lower right")
    tidy(axes)
    return figure
