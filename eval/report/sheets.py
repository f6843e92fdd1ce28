"""Sheets of images: what was recovered beside the truth and beside the floor."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.safe_text import visible
from fedre_privacy.core.units import plural

from ..score import Scores
from .scheme import PHOTO
from .style import (
    LONGEST,
    SMALL,
    TEXT,
    VERMILLION,
    framed_figure,
    plain,
    settle,
)

_MATCHED = {
    "best": "truth\n(best match)",
    "mean-image": "truth\n(mean image)",
    "nearest-rep": "truth (nearest\nrepresentation)",
    "assigned": "truth\n(one-to-one match)",
}
ROWS_PER_BLOCK = 8
"""Above this the rows are set in two blocks side by side."""
CELL = 0.86
"""Side of an image (in)."""


@dataclass(frozen=True)
class Pick:
    """One target to show, and why: ``"best"``, ``"median"``, ``"worst"`` or its rank."""

    target: int
    label: str


def pick_rows(scores: Tensor, count: int = 7, *, higher_is_better: bool = True) -> list[Pick]:
    """Choose targets at evenly spaced ranks, the best, median and worst among them.

    The choice depends on the scores and the number alone, so nobody picks by eye.

    Args:
        scores: (N,); NaN rows (diverged) are not shown.
        count: targets to show, at least 3; fewer if there are fewer.
        higher_is_better: whether the best has the highest score.

    Raises:
        ConfigError: `count` is below 3.
    """
    if count < 3:
        raise ConfigError(
            f"{count} rows cannot show best, median and worst; at least 3 are needed."
        )
    values = torch.as_tensor(scores).double()
    order = values.argsort(descending=higher_is_better, stable=True)
    order = order[values[order].isfinite()]
    n = len(order)
    if n == 0:
        return []
    middle = (n - 1) // 2
    ranks = {round(rank) for rank in np.linspace(0, n - 1, min(count, n)).tolist()}
    if middle not in ranks:
        ranks.remove(min(ranks - {0, n - 1}, key=lambda rank: abs(rank - middle)))
        ranks.add(middle)
    names = {middle: "median", n - 1: "worst", 0: "best"}
    return [
        Pick(int(order[rank]), names.get(rank, f"rank {rank + 1} of {n}")) for rank in sorted(ranks)
    ]


def reconstruction_sheet(
    scores: Scores,
    recovered: Tensor,
    *,
    title: str,
    caption: str = "",
    metric: str = "psnr",
    count: int = 7,
    extra: Mapping[str, Tensor] | None = None,
    counterfactual: str | None = None,
) -> Figure:
    """Draw what was recovered beside the truth and beside the best answer without any upload.

    Columns: truth under the matching rule, recovered, their absolute difference times 4 (black is
    equal), the floor's answer, then `extra`. Targets are chosen by `pick_rows`. Pixels are
    not smoothed.

    Args:
        recovered: the attack's images (N, C, H, W) in [0, 1], C 1 or 3; NaN rows diverged.
        caption: text from the record: who attacks, what was uploaded, what is known.
        metric: orders the rows.
        count: rows at most; above 8 they are set in two blocks.
        extra: heading to images (N, C, H, W), for example the same attack on single
            representations (the ceiling), and the truth of that.
        counterfactual: name of the protocol that does not upload what was attacked.

    Raises:
        ConfigError: `metric` was not scored, or `count` is below 3.
        IncompatibleError: images that do not fit the scores.
    """
    if metric not in _metrics(scores):
        known = ", ".join(_metrics(scores))
        raise ConfigError(f"The rows cannot be ordered by '{metric}'; scored were {known}.")
    extra = dict(extra or {})
    for what, images in {"recovered": recovered, **extra}.items():
        if images.shape != scores.originals.shape:
            raise IncompatibleError(
                f"'{what}' has shape {tuple(images.shape)}; the scores are for "
                f"{tuple(scores.originals.shape)}."
            )
    ordering = torch.tensor(scores.own_rows[metric].to_list(), dtype=torch.float64)
    higher = scores.get(metric).higher_is_more_leakage
    picks = pick_rows(ordering, count, higher_is_better=higher)
    psnr = scores.get("psnr")
    mostly = "mostly " if len(psnr.floors_chosen) > 1 else ""
    floor = textwrap.fill(f"floor: {mostly}{psnr.floor_name}", 14)
    floor_columns = {floor: scores.floor_images} if psnr.floor_name else {}
    columns = {
        _MATCHED[scores.matching]: scores.originals,
        "recovered": recovered,
        "difference x4": (recovered - scores.originals).abs().mul(4),
        **floor_columns,
        **extra,
    }
    targets = [pick.target for pick in picks]
    flags = [f"COUNTERFACTUAL: not uploaded by {counterfactual}"] if counterfactual else []
    return image_sheet(
        {heading: images[targets] for heading, images in columns.items()},
        [_row_text(scores, pick) for pick in picks],
        title=title,
        caption="\n".join([*flags, *([caption] if caption else []), _selection(scores, metric)]),
        gap_before=len(columns) - len(extra) if extra else None,
    )


def _row_text(scores: Scores, pick: Pick) -> str:
    row = scores.own_rows.iloc[pick.target]
    label = int(row["label"])
    lines = [
        pick.label,
        f"client {int(row['client'])}, " + (f"class {label}" if label >= 0 else "classes mixed"),
        f"made of {int(row['support_size'])} image{'' if row['support_size'] == 1 else 's'}",
    ]
    for name in _metrics(scores)[:3]:
        of = scores.get(name)
        value, floor = of.number(row[name]), of.number(row[f"{name}_floor"])
        lines.append(f"{of.title} {value} (floor {floor})")
    return "\n".join(lines)


def _metrics(scores: Scores) -> list[str]:
    """Keys of the measures that each target has a score and a floor of."""
    return [m.key for m in scores.measures if not m.group and f"{m.key}_floor" in scores.rows]


def _selection(scores: Scores, metric: str) -> str:
    lost = f"{scores.diverged} diverged and count as the worst floor. "
    return (
        f"{plural(scores.targets, 'target')}. {lost if scores.diverged else ''}"
        f"Verdict: {scores.verdict}. "
        f"Rows: evenly spaced ranks by {scores.get(metric).title}, not chosen by eye. "
        f"Truth: {scores.compared_with}; floors are scored against their own match."
    )


def image_sheet(
    columns: Mapping[str, Tensor],
    notes: Sequence[str],
    *,
    title: str,
    caption: str = "",
    gap_before: int | None = None,
) -> Figure:
    """Lay out images in labelled columns with a note beside each row.

    Args:
        columns: heading to images (n, C, H, W), C 1 or 3; values are clamped to [0, 1], rows with
            non-finite values are drawn as diverged.
        notes: text beside each row; its first line is set in bold.
        gap_before: number of the column before which a gap is left.

    Raises:
        IncompatibleError: lengths differ, or images are neither grey nor colour.
    """
    for heading, images in columns.items():
        if images.dim() != 4 or images.shape[1] not in (1, 3) or len(images) != len(notes):
            raise IncompatibleError(
                f"Column '{heading}' has shape {tuple(images.shape)}; needed are "
                f"{len(notes)} images (n, 1 or 3, H, W)."
            )
    blocks = 2 if len(notes) > ROWS_PER_BLOCK else 1
    rows = max(1, -(-len(notes) // blocks))
    ratios = [1.0] * len(columns)
    if gap_before is not None:
        ratios.insert(gap_before, 0.15)
    width = blocks * (1.6 + sum(ratios) * (CELL + 0.06)) + 0.2
    heads = [_narrow(heading) for heading in columns]
    height = rows * (CELL + 0.06) + 0.14 * max(1 + head.count("\n") for head in heads)
    figure = framed_figure(max(width, 5.2), height, title, caption, images=True)
    grid = figure.add_gridspec(rows, blocks * len(ratios), width_ratios=ratios * blocks)
    for row, note in enumerate(notes):
        block, line = divmod(row, rows)
        for number, images in enumerate(columns.values()):
            at = number + (gap_before is not None and number >= gap_before)
            axes = figure.add_subplot(grid[line, block * len(ratios) + at])
            _image(axes, images[row])
            if line == 0:
                axes.set_title(heads[number], fontsize=SMALL, pad=4)
            if number == 0:
                _row_note(axes, note)
    settle(figure)
    return figure


def _narrow(heading: str) -> str:
    """A heading in lines that fit above an image."""
    return "\n".join(
        plain(part) for line in heading.splitlines() for part in textwrap.wrap(visible(line), 16)
    )


def _image(axes: Axes, image: Tensor) -> None:
    """Draw an image (C, H, W), or the word for one that is not finite."""
    axes.set_gid(f"{PHOTO}-{len(axes.figure.axes)}")
    axes.set_box_aspect(image.shape[1] / image.shape[2])
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    axes.spines[:].set(linewidth=0.4, color="#888888")
    if image.isfinite().all():
        axes.imshow(_displayable(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    else:
        axes.text(
            0.5, 0.5, "diverged", fontsize=SMALL, ha="center", va="center", color=VERMILLION,
            transform=axes.transAxes,
        )  # fmt: skip


def _row_note(axes: Axes, note: str) -> None:
    """Write a note at the left of an image, its first line in bold."""
    head, _, rest = note.partition("\n")
    for words, down, size, weight, colour in (
        (head, 0, TEXT, "bold", "black"),
        (rest, -11, 6.2, "normal", "#333333"),
    ):
        axes.annotate(
            "\n".join(plain(line, LONGEST) for line in words.split("\n")), (0, 1), (-6, down),
            xycoords="axes fraction", textcoords="offset points", ha="right", va="top",
            linespacing=1.25, fontsize=size, weight=weight, color=colour,
        )  # fmt: skip


def _displayable(image: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = image.detach().float().cpu().clamp(0, 1).numpy()
    return array[0] if len(array) == 1 else array.transpose(1, 2, 0)
