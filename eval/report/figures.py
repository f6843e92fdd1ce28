"""The trace of an attack, and who holds what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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
    LONGEST,
    ORANGE,
    SMALL,
    TEXT,
    framed_figure,
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
    figure = framed_figure(max(1.75 + classes * side, 4.4), clients * tall + below, title, foot)
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
