"""Accuracy, communication and leakage of several protocols in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from adjustText import adjust_text
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from fedre_privacy.core.errors import ConfigError

from .style import LONGEST, SMALL, TEXT, framed_figure, plain, settle, tidy

GREY = "#b8b8b8"
RADIUS = 4.5
"""Of a point, in pt."""
NAMED = 30
"""Most points whose names have room beside them."""
FRONT = "front of accuracy and leakage"
"""Label of the line that joins what no other point beats in both."""


@dataclass(frozen=True)
class Point:
    """One protocol, scheme or defence.

    Args:
        label: its name.
        accuracy: test accuracy in [0, 1], with its sd over seeds (None for one seed).
        scalars: uploaded per round, over all clients.
        over: leakage over the floor, or None where no attack could read the upload.
        over_sd: over seeds.
        attack: the attack that reached it, on most seeds.
        chosen: seeds on which attack and group were chosen, in words; empty: there was no choice.
        seeds: number of trainings.
        shared, shared_sd: accuracy on the test set that all clients share, with its sd over seeds;
            None where it was not measured.
        targets: of the attack, over all seeds; None where there is none.
    """

    label: str
    accuracy: float
    accuracy_sd: float | None
    scalars: float
    over: float | None
    over_sd: float | None
    attack: str
    seeds: int
    chosen: str = ""
    shared: float | None = None
    shared_sd: float | None = None
    targets: int | None = None


def on_shared(points: Sequence[Point]) -> list[Point]:
    """The points placed by their accuracy on the shared test set; those without it are left out."""
    return [
        replace(p, accuracy=p.shared, accuracy_sd=p.shared_sd)
        for p in points
        if p.shared is not None
    ]


def pareto(points: Sequence[Point]) -> list[Point]:
    """Points that no other beats in accuracy, scalars and leakage at once.

    Points without a leakage are left out: nothing is known about theirs. Below the floor counts as
    at the floor: a worse guess protects nobody.
    """
    known = [p for p in points if p.over is not None]

    def key(p: Point) -> tuple[float, float, float]:
        return (p.accuracy, -p.scalars, -max(p.over or 0.0, 0.0))

    def beaten(p: Point) -> bool:
        return any(
            all(a >= b for a, b in zip(key(o), key(p), strict=True)) and key(o) != key(p)
            for o in known
        )

    return [p for p in known if not beaten(p)]


def front(points: Sequence[Point]) -> list[Point]:
    """Points that no other beats in accuracy and leakage at once, by leakage; see `pareto`."""
    least = pareto([replace(p, scalars=0.0) for p in points])
    return sorted(least, key=lambda p: (p.over or 0.0, p.accuracy))


def frontier(
    points: Sequence[Point],
    *,
    measure: str = "images: PSNR",
    unit: str = "dB",
    accuracy: str = "test accuracy",
    caption: str = "",
) -> Figure:
    """Draw figure B: two panels that share accuracy, against scalars and against leakage.

    Colour is leakage over the floor; a ring marks the Pareto set of all three, a line in the panel
    of leakage the front of accuracy and leakage; grey points are protocols that no attack on images
    could read. Of more than `NAMED` points so many have names.

    Args:
        measure, unit: of the points' `over`. accuracy: what their `accuracy` is, in words.

    Raises:
        ConfigError: no point.
    """
    if not points:
        raise ConfigError("There is nothing to draw: no variant has a finished training.")
    known = [p.over for p in points if p.over is not None]
    low, high = 0.0, max([1.0, *known])
    shade = Normalize(low, high, clip=True)
    colours = colormaps["viridis_r"]
    best = {p.label for p in pareto(points)}
    told = {p.label for p in points}
    if len(points) > NAMED:
        by_accuracy = sorted(points, key=lambda p: (p.label not in best, -p.accuracy))
        told = {p.label for p in by_accuracy[:NAMED]}
        caption = (
            f"{caption}{' ' * bool(caption)}Named are {NAMED} of the {len(points)} points, the "
            "Pareto set first, then by accuracy; the table beside this figure has all."
        )
    figure = framed_figure(11.0, 4.9, "Accuracy, communication and leakage", caption)
    axes_a, axes_b = figure.subplots(1, 2, sharey=True)
    named: list[tuple[Axes, list[tuple[Point, float]]]] = []
    for axes, across in ((axes_a, "scalars"), (axes_b, "over")):
        placed: list[tuple[Point, float]] = []
        for p in sorted(points, key=lambda p: -p.accuracy):
            x = p.scalars if across == "scalars" else p.over
            if across == "scalars" and x is not None and x <= 0:
                x = 1.0
            if x is None:
                continue
            colour = GREY if p.over is None else colours(shade(p.over))
            across_sd = p.over_sd if across == "over" else None
            axes.errorbar(
                x, p.accuracy, yerr=p.accuracy_sd, xerr=across_sd, fmt="none", ecolor="#888888",
                lw=0.8, zorder=1,
            )  # fmt: skip
            edge = "black" if p.label in best else "#999999"
            axes.scatter(
                x,
                p.accuracy,
                s=(2 * RADIUS - 1) ** 2,
                color=[colour],
                edgecolor=edge,
                lw=1.1,
                zorder=2,
            )
            placed.append((p, float(x)))
        if across == "scalars":
            axes.set_xscale("log")
        tidy(axes)
        axes.margins(x=0.18, y=0.12)
        named.append((axes, placed))
    axes_a.set_xlabel("scalars uploaded per round (log)", fontsize=TEXT)
    shown = f"{measure} over the floor" + (f" ({unit})" if unit else "")
    axes_b.set_xlabel(plain(shown), fontsize=TEXT)
    axes_b.axvline(0, color="#888888", lw=0.8, ls=":")
    if unbeaten := front(points):
        axes_b.plot(
            [*(p.over for p in unbeaten), max(known)],
            [p.accuracy for p in (*unbeaten, unbeaten[-1])],
            drawstyle="steps-post", color="#555555", lw=1.0, ls="--", zorder=0, label=FRONT,
        )  # fmt: skip
    axes_a.set_ylabel(accuracy, fontsize=TEXT)
    bar = figure.colorbar(ScalarMappable(shade, colours), ax=(axes_a, axes_b), aspect=40, pad=0.02)
    bar.ax.tick_params(labelsize=SMALL)
    bar.ax.set_title(plain(f"leakage\n{unit}".strip()), fontsize=SMALL)
    settle(figure)
    for axes, placed in named:
        _name(axes, [one for one in placed if one[0].label in told])
    return figure


def _name(axes: Axes, points: Sequence[tuple[Point, float]]) -> None:
    """Write names beside the points, moved to where they cover neither points nor each other."""
    if not points:
        axes.text(
            0.5, 0.5, "no attack on images could read any", transform=axes.transAxes, ha="center",
            fontsize=SMALL, color="#777777",
        )  # fmt: skip
        return
    centres = axes.transData.transform([(x, p.accuracy) for p, x in points])
    turns = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    ring = np.stack([np.cos(turns), np.sin(turns)], 1) * RADIUS * axes.figure.dpi / 72
    edges = axes.transData.inverted().transform((centres[:, None] + ring).reshape(-1, 2))
    texts = [
        axes.text(
            x, p.accuracy, plain(p.label, LONGEST) + (" (sends nothing)" if p.scalars < x else ""),
            fontsize=SMALL, zorder=3,
            color="#777777" if p.over is None else "black",
        )
        for p, x in points
    ]  # fmt: skip
    state = np.random.get_state()
    np.random.seed(0)  # points at one place are told apart by chance: the same one every time
    try:
        adjust_text(
            texts, edges[:, 0], edges[:, 1],
            target_x=[x for _, x in points], target_y=[p.accuracy for p, _ in points],
            ax=axes, expand=(1.1, 1.25), iter_lim=500, min_arrow_len=9,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "#777777", "shrinkB": RADIUS},
        )  # fmt: skip
    finally:
        np.random.set_state(state)
