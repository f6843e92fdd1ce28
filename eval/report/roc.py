"""The ROC of membership attacks on logarithmic axes, where low rates of alarms can be read."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.core.errors import ConfigError

from ..lower_bounds import share_interval
from ..roc import roc
from .style import CYCLE, SMALL, framed_figure, plain, tidy


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
    figure = framed_figure(4.4, 3.7, title, caption)
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
