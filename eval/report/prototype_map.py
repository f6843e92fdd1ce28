"""Prototypes of all clients, and what was uploaded in their place, on a plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError

from .style import LONGEST, SMALL, framed_figure, plain

ENTANGLED = -1
"""In place of a class: a mix of several."""
FEWEST = 5
"""Rows that a map needs: t-SNE places neighbours, and fewer rows have none."""


def tsne_map(rows: Tensor, *, seed: int = 0) -> Tensor:
    """Place vectors (N, d) on a plane (N, 2) by t-SNE, begun from their two principal axes.

    Neighbours are kept; distances between groups and their sizes mean nothing.

    Raises:
        IncompatibleError: fewer than 5 rows.

    Reference: van der Maaten, Hinton, Visualizing Data using t-SNE, JMLR 2008.
    """
    if len(rows) < FEWEST:
        raise IncompatibleError(f"A map needs at least {FEWEST} vectors; there are {len(rows)}.")
    from sklearn.manifold import TSNE  # a second to import

    method = TSNE(
        perplexity=min(30.0, (len(rows) - 1) / 3), init="pca", random_state=seed, n_jobs=1
    )
    return torch.from_numpy(method.fit_transform(rows.double().cpu().numpy())).float()


def prototype_map(
    points: Tensor,
    labels: Sequence[int],
    clients: Sequence[int],
    *,
    class_names: Sequence[str],
    title: str = "Prototypes",
    caption: str = "",
) -> Figure:
    """Draw prototypes as the number of their client in the colour of their class.

    Args:
        points: (N, 2), see `tsne_map`.
        labels: class of each row, `ENTANGLED` for an entangled upload, drawn as a black cross.
        clients: client of each row.
        class_names: for the legend.
    """
    entangled = any(label == ENTANGLED for label in labels)
    foot = f"{caption}\n" if caption else ""
    foot += "Numbers: clients. Colours: classes. "
    foot += "Crosses: what they uploaded, entangled. " if entangled else ""
    foot += "t-SNE keeps neighbours; distances between groups mean nothing."
    figure = framed_figure(6.4, 4.3, title, foot)
    axes = figure.subplots()
    palette = colormaps["tab10" if len(class_names) <= 10 else "tab20"]
    shades = [palette(c % palette.N) for c in range(len(class_names))]
    for (x, y), label, client in zip(points.tolist(), labels, clients, strict=True):
        if label == ENTANGLED:
            axes.plot(x, y, "x", color="black", markersize=7, markeredgewidth=1.4, zorder=3)
            axes.annotate(
                str(client), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=5.5,
                weight="bold",
            )  # fmt: skip
            continue
        axes.plot(x, y, "o", color=shades[label], markersize=9, markeredgewidth=0, alpha=0.85)
        axes.text(x, y, str(client), fontsize=5.5, ha="center", va="center", zorder=4)
    low, high = points.min(0).values.numpy(), points.max(0).values.numpy()
    room = 0.06 * np.maximum(high - low, 1e-6)
    axes.set_xlim(low[0] - room[0], high[0] + room[0])
    axes.set_ylim(low[1] - room[1], high[1] + room[1])
    axes.set(xticks=[], yticks=[])
    present = [c for c in range(len(class_names)) if c in set(labels)]
    if len(present) <= 20:
        dots = [
            Line2D([], [], marker="o", ls="", color=shades[c], label=plain(class_names[c], LONGEST))
            for c in present
        ]
        axes.legend(
            handles=dots, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=SMALL, frameon=False
        )
    return figure
