"""Decision boundaries in the plane, method by method and client by client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.eval.report.style import (
    BLACK,
    BLUE,
    GREEN,
    SMALL,
    TEXT,
    VERMILLION,
    framed_figure,
    plain,
    tidy,
)

WIDEST = 18
"""Characters of a method's name above its column."""
GRID = 120
"""Points along each side of the grid on which a prediction is drawn."""


@dataclass(frozen=True, eq=False)
class ClientView:
    """One client's part of the picture.

    Args:
        points: (n, 2).
        labels: (n,), 0 or 1.
        probability: of class 1 at points (m, 2): (m,).
    """

    points: Tensor
    labels: Tensor
    probability: Callable[[Tensor], Tensor]


def decision_boundaries(
    methods: Mapping[str, Sequence[ClientView]],
    means: pd.DataFrame,
    runs: pd.DataFrame,
    *,
    best: float,
    published_error: float,
    title: str,
    caption: str = "",
) -> Figure:
    """Draw predictions in input space, a column per method and a row per client, over accuracies.

    Colours: vermillion class 0, blue class 1, darker where the model is surer; the line is where
    both are equally likely. Below every column: accuracy of each seed, mean with interval, and
    the published value.

    Args:
        methods: heading to the views of all clients, as many for each.
        means: columns ``method``, ``acc_post_broadcast`` with ``_low`` and ``_high`` (0 to 1),
            and ``published`` (absent where nothing is).
        runs: columns ``method`` and ``acc_post_broadcast``, a row per seed.
        best: accuracy of the classifier that knows the law of the data.
        published_error: standard error of a published accuracy.
    """
    rows, columns = len(next(iter(methods.values()))), len(methods)
    cell, plot = 1.4, 2.1
    figure = framed_figure(0.8 + columns * cell, rows * cell + plot + 0.2, title, caption)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[cell] * rows + [plot])
    extent = [_extent([views[k].points for views in methods.values()]) for k in range(rows)]
    for number, (heading, views) in enumerate(methods.items()):
        for k, view in enumerate(views):
            axes = figure.add_subplot(grid[k, number])
            _draw(axes, view, extent[k])
            if k == 0:
                axes.set_title(plain(heading, WIDEST), fontsize=TEXT, weight="bold")
            if number == 0:
                axes.set_ylabel(f"client {k}", fontsize=TEXT)
    below = figure.add_subplot(grid[rows, :])
    _accuracies(below, list(methods), means, runs, best, published_error)
    return figure


_SHADES = LinearSegmentedColormap.from_list("classes", [VERMILLION, "#ffffff", BLUE])

Extent = tuple[float, float, float, float]


def _extent(clouds: Sequence[Tensor]) -> Extent:
    """A square around all points: left, right, bottom, top."""
    points = torch.cat(list(clouds))
    low, high = points.amin(0), points.amax(0)
    middle, half = (low + high) / 2, float((high - low).max()) / 2 * 1.06
    (x, y) = middle.tolist()
    return x - half, x + half, y - half, y + half


def _draw(axes: Axes, view: ClientView, extent: Extent) -> None:
    x_low, x_high, y_low, y_high = extent
    xs, ys = torch.linspace(x_low, x_high, GRID), torch.linspace(y_low, y_high, GRID)
    grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1).reshape(-1, 2)
    chance = view.probability(grid).reshape(GRID, GRID).numpy()
    axes.imshow(
        chance, extent=extent, origin="lower", cmap=_SHADES, vmin=0, vmax=1,
        interpolation="bilinear", aspect="auto",
    )  # fmt: skip
    if chance.min() < 0.5 < chance.max():
        axes.contour(xs.numpy(), ys.numpy(), chance, levels=[0.5], colors=BLACK, linewidths=1.1)
    else:
        text = f"class {int(chance.mean() > 0.5)} everywhere"
        axes.text(
            0.5, 0.04, text, fontsize=SMALL, ha="center", va="bottom", transform=axes.transAxes
        )
    points, labels = view.points.numpy(), view.labels.numpy()
    for value, colour, marker in ((0, VERMILLION, "o"), (1, BLUE, "^")):
        own = points[labels == value]
        axes.scatter(
            own[:, 0], own[:, 1], s=7, c=colour, marker=marker, edgecolors="white", linewidths=0.3
        )
    axes.set(xlim=(x_low, x_high), ylim=(y_low, y_high), xticks=[], yticks=[])
    axes.spines[:].set(linewidth=0.4, color="#888888")


def _accuracies(
    axes: Axes,
    methods: Sequence[str],
    means: pd.DataFrame,
    runs: pd.DataFrame,
    best: float,
    published_error: float,
) -> None:
    """Draw accuracies below the columns of the methods, which are one unit wide."""
    name = "acc_post_broadcast"
    seeds = runs.groupby("method")[name]
    rows = means.set_index("method").loc[list(methods)]
    mean, low, high = (100 * rows[f"{name}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
    places = np.arange(len(methods))
    for x, heading in enumerate(methods):
        own = 100 * seeds.get_group(heading).to_numpy(dtype=float)
        spread = np.linspace(-0.08, 0.08, len(own)) if len(own) > 1 else np.zeros(1)
        label = "a seed" if x == 0 else None
        axes.scatter(x - 0.22 + spread, own, s=6, c="#999999", linewidths=0, label=label)
        axes.annotate(
            f"{mean[x]:.1f}", (x, high[x]), xytext=(0, 3), textcoords="offset points",
            fontsize=SMALL, ha="center", va="bottom", color=BLUE,
        )  # fmt: skip
    axes.errorbar(
        places, mean, [mean - low, high - mean], fmt="o", color=BLUE, markersize=4.5, capsize=3,
        linestyle="none", elinewidth=1.4, label="mean over seeds, 95 %",
    )  # fmt: skip
    published = rows["published"].to_numpy(dtype=float)
    known = ~np.isnan(published)
    axes.errorbar(
        places[known] + 0.3, 100 * published[known], 100 * published_error, fmt="D",
        color=VERMILLION, markerfacecolor="white", markersize=4, linestyle="none", elinewidth=0.9,
        label="published (one seed), 1 s.e.",
    )  # fmt: skip
    axes.axhline(100 * best, color=GREEN, linestyle="--", linewidth=1, label="best on average")
    axes.axhline(50, color="#666666", linestyle=":", linewidth=1, label="chance")
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.set_xticks(places, [plain(method, WIDEST) for method in methods])
    axes.set_ylabel("test accuracy (%)")
    tidy(axes)
    axes.grid(False, axis="x")
    axes.legend(
        fontsize=SMALL - 0.5, frameon=False, ncols=min(5, len(methods)), loc="lower left",
        bbox_to_anchor=(0, 1.0), borderaxespad=0.1, columnspacing=1.2, handletextpad=0.4,
    )  # fmt: skip
