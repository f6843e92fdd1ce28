"""Figures drawn from traces, training records and partitions; each returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.units import plural

from .style import (
    BLUE,
    CYCLE,
    LONGEST,
    ORANGE,
    SMALL,
    TEXT,
    framed,
    panels,
    plain,
    tidy,
)


def attack_trace(
    steps: Tensor, fit: Tensor, *, title: str = "Attack trace", caption: str = ""
) -> Figure:
    """Draw the attack's own objective over its steps: median over targets and quartile band.

    Both axes are logarithmic; step 0 sits at the left edge of a short linear piece. Values that
    are zero or below are drawn at the smallest positive one.

    Args:
        steps: (num_logged,) optimiser steps, ascending.
        fit: (num_logged, N); lower is better; NaN where a target diverged.

    Raises:
        IncompatibleError: shapes that do not fit, or nothing finite to draw.
    """
    if fit.dim() != 2 or len(steps) != len(fit):
        raise IncompatibleError(
            f"The trace has shape {tuple(fit.shape)} for {len(steps)} logged steps; needed is "
            "(num_logged, N)."
        )
    values = fit.detach().double().cpu()
    values = torch.where(values.isfinite(), values, torch.nan)
    seen = values.isfinite().any(dim=1)
    values, x = values[seen], steps.detach().cpu()[seen].double().numpy()
    positive = values[values > 0]
    if not len(positive):
        raise IncompatibleError(
            "The trace holds no finite positive value; there is nothing to draw."
        )
    values = torch.where(values <= 0, positive.min(), values)
    quantiles = values.nanquantile(values.new_tensor([0.25, 0.5, 0.75]), dim=1).numpy()
    figure, (axes,) = panels(1, title, caption)
    axes.fill_between(
        x, quantiles[0], quantiles[2], color=BLUE, alpha=0.25, linewidth=0, label="quartiles"
    )
    label = f"median of {values.shape[1]} targets"
    axes.plot(
        x, quantiles[1], color=BLUE, linewidth=1.6, marker="o" if len(x) < 3 else None, label=label
    )
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(min(x.min(), 0 if x.min() < 1 else x.min()), max(x.max(), x.min() + 1))
    axes.set_yscale("log")
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("match loss (lower is better)")
    axes.legend(fontsize=SMALL, frameon=False)
    tidy(axes)
    return figure


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
    for (axes, column, label), colour in zip(
        curves, (*CYCLE[: len(moments)], CYCLE[0]), strict=True
    ):
        dash = "--" if column.endswith("broadcast") else "-"
        known = frame[["round", column]].apply(pd.to_numeric).dropna()
        over = known.groupby("round")[column].agg(["mean", "min", "max"])
        x = over.index.to_numpy(dtype=float)
        axes.plot(
            x,
            over["mean"].to_numpy(),
            dash,
            color=colour,
            linewidth=1.5,
            label=label,
            marker="o" if len(x) <= 25 else None,
            markersize=2.5,
        )
        if len(known) > len(over):
            axes.fill_between(
                x,
                over["min"].to_numpy(),
                over["max"].to_numpy(),
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
        tidy(axes)
    right.set_ylim(bottom=0)
    return figure


def partition_picture(
    counts: Tensor,
    *,
    class_names: Sequence[str] | None = None,
    title: str = "Who holds what",
    caption: str = "",
) -> Figure:
    """Draw how many training images of each class every client holds.

    Cells with a single image are orange: there a prototype is the image's own representation.

    Args:
        counts: (K, C) images of each class at each client.
        class_names: C names for the axis; numbers without.

    Raises:
        IncompatibleError: not a (K, C) table, or another number of names.
    """
    if counts.dim() != 2 or not counts.numel():
        raise IncompatibleError(f"Counts have shape {tuple(counts.shape)}; needed is (K, C).")
    clients, classes = counts.shape
    if class_names is not None and len(class_names) != classes:
        raise IncompatibleError(f"{len(class_names)} class names were given for {classes} classes.")
    table = counts.detach().cpu().numpy()
    side = min(0.34, max(0.05, 5.6 / classes))
    tall = min(0.30, max(0.05, 6.0 / clients))
    names = [plain(name, LONGEST) for name in class_names or ()] if side >= 0.12 else []
    single = int((table == 1).sum())
    foot = f"{caption}\n" if caption else ""
    foot += f"Orange: a single image of the class ({plural(single, 'cell')}). White: none."
    below = 0.35 + 0.045 * max(map(len, names), default=2)
    figure = framed(max(1.75 + classes * side, 4.4), clients * tall + below, title, foot)
    axes = figure.subplots()
    top_count = max(int(table.max()), 1)
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))
    picture = axes.imshow(
        np.ma.masked_equal(table, 0),
        cmap=blues,
        aspect="auto",
        norm=PowerNorm(0.5, vmin=0, vmax=top_count),
        interpolation="nearest",
    )
    axes.imshow(
        np.ma.masked_not_equal(table, 1),
        cmap=ListedColormap([ORANGE]),
        aspect="auto",
        interpolation="nearest",
    )
    if side >= 0.3 and tall >= 0.2:
        for k, c in np.argwhere(table > 0):
            dark = table[k, c] > 0.35 * top_count
            axes.text(
                c,
                k,
                f"{int(table[k, c])}",
                fontsize=5.8,
                ha="center",
                va="center",
                color="white" if dark else "black",
            )
    axes.set_xlabel("class", fontsize=TEXT)
    axes.set_ylabel("client", fontsize=TEXT)
    axes.tick_params(labelsize=SMALL, length=2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=20))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=20))
    if names:
        axes.set_xticks(range(classes), names, rotation=45, ha="right", fontsize=6.2)
    bar = figure.colorbar(picture, ax=axes, pad=0.02, aspect=18)
    bar.set_label("images", fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    return figure
