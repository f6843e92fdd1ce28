"""Accuracy, communication and leakage of several protocols in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from fedre_privacy.core.errors import ConfigError

from .style import (
    SMALL,
    TEXT,
    blank,
    caption_height,
    tidy,
    wrap,
    write_caption,
    write_title,
)

GREY = "#b8b8b8"


@dataclass(frozen=True)
class Point:
    """One protocol, scheme or defence.

    Args:
        label: its name.
        accuracy: test accuracy in [0, 1], with its sd over seeds (None for one seed).
        scalars: uploaded per round, over all clients.
        leakage: of images over the floor (dB), or None where no attack could read the upload.
        leakage_sd: over seeds.
        attack: the attack that reached it.
        seeds: number of trainings.
    """

    label: str
    accuracy: float
    accuracy_sd: float | None
    scalars: float
    leakage: float | None
    leakage_sd: float | None
    attack: str
    seeds: int


def pareto(points: Sequence[Point]) -> list[Point]:
    """Points that no other beats in accuracy, scalars and leakage at once.

    Points without a leakage are left out: nothing is known about theirs. Below the floor counts as
    at the floor: a worse guess protects nobody.
    """
    known = [p for p in points if p.leakage is not None]

    def key(p: Point) -> tuple[float, float, float]:
        return (p.accuracy, -p.scalars, -max(p.leakage or 0.0, 0.0))

    def beaten(p: Point) -> bool:
        return any(
            all(a >= b for a, b in zip(key(o), key(p), strict=True)) and key(o) != key(p)
            for o in known
        )

    return [p for p in known if not beaten(p)]


def frontier(points: Sequence[Point], *, caption: str = "", title: str = "") -> Figure:
    """Draw figure B: two panels that share accuracy, against scalars and against leakage.

    Colour is leakage over the floor; a ring marks the Pareto set of all three; grey points are
    protocols that no attack on images could read.

    Raises:
        ConfigError: no point.
    """
    if not points:
        raise ConfigError("There is nothing to draw: no variant has a finished training.")
    known = [p.leakage for p in points if p.leakage is not None]
    low, high = 0.0, max([1.0, *known])
    shade = Normalize(low, high, clip=True)
    colours = colormaps["viridis_r"]
    best = {p.label for p in pareto(points)}
    lines = wrap(caption, 11.0)
    height = 5.2 + caption_height(lines)
    figure = blank(11.0, height)
    left = 0.07
    bottom = (caption_height(lines) + 0.6) / height
    area = (0.9 * height - caption_height(lines) - 0.6) / height
    axes_a = figure.add_axes((left, bottom, 0.40, area))
    axes_b = figure.add_axes((left + 0.47, bottom, 0.40, area), sharey=axes_a)
    for axes, across in ((axes_a, "scalars"), (axes_b, "leakage")):
        placed: list[tuple[float, float]] = []
        for p in sorted(points, key=lambda p: -p.accuracy):
            x = p.scalars if across == "scalars" else p.leakage
            if across == "scalars" and x is not None and x <= 0:
                x = 1.0
            if x is None:
                continue
            colour = GREY if p.leakage is None else colours(shade(p.leakage))
            across_sd = p.leakage_sd if across == "leakage" else None
            axes.errorbar(
                x, p.accuracy, yerr=p.accuracy_sd, xerr=across_sd, fmt="none", ecolor="#888888",
                lw=0.8, zorder=1,
            )  # fmt: skip
            edge = "black" if p.label in best else "white"
            axes.scatter(x, p.accuracy, s=64, color=[colour], edgecolor=edge, lw=1.1, zorder=2)
            placed.append((float(x), p.accuracy))
        if across == "scalars":
            axes.set_xscale("log")
        _label(axes, points, across)
        tidy(axes)
    axes_a.set_xlabel("scalars uploaded per round (log)", fontsize=TEXT)
    axes_b.set_xlabel("images: PSNR over the floor (dB)", fontsize=TEXT)
    axes_b.axvline(0, color="#888888", lw=0.8, ls=":")
    axes_a.set_ylabel("test accuracy", fontsize=TEXT)
    axes_b.tick_params(labelleft=False)
    bar = figure.add_axes((0.952, bottom, 0.012, area))
    gradient = np.linspace(0, 1, 128)[:, None]
    bar.imshow(gradient, aspect="auto", cmap=colours, origin="lower", extent=(0, 1, low, high))
    bar.set_xticks([])
    bar.yaxis.tick_right()
    bar.tick_params(labelsize=SMALL)
    bar.set_title("leakage\ndB", fontsize=SMALL)
    write_title(figure, title or "Accuracy, communication and leakage", left=left)
    write_caption(figure, lines, left=left)
    return figure


def _label(axes: object, points: Sequence[Point], across: str) -> None:
    """Write names beside the points, pushed apart where they would cover each other."""
    from matplotlib.axes import Axes

    if not isinstance(axes, Axes):
        raise TypeError("axes")
    axes.margins(x=0.16, y=0.08)
    axes.autoscale_view()
    low, high = axes.get_ylim()
    gap = (high - low) * 0.042
    taken: list[tuple[float, float]] = []
    span = axes.get_xlim()
    for p in sorted(points, key=lambda p: -p.accuracy):
        x = p.scalars if across == "scalars" else p.leakage
        if x is None:
            continue
        if across == "scalars":
            x = max(x, 1.0)
            place = (np.log10(x) - np.log10(span[0])) / (np.log10(span[1]) - np.log10(span[0]))
        else:
            place = (x - span[0]) / (span[1] - span[0])
        y = p.accuracy
        while any(abs(place - q) < 0.22 and abs(y - v) < gap for q, v in taken):
            y -= gap * 0.5
        taken.append((float(place), y))
        colour = "#777777" if p.leakage is None else "black"
        axes.annotate(
            p.label, (x, p.accuracy), xytext=(x, y), fontsize=SMALL, color=colour, va="center",
            textcoords="data", zorder=3,
            arrowprops=None if abs(y - p.accuracy) < gap else {"arrowstyle": "-", "lw": 0.4},
        )  # fmt: skip
        axes.texts[-1].set_x(x)
        axes.texts[-1].set_horizontalalignment("left")
        axes.texts[-1].set_text("   " + p.label)
