"""Draw what `benchmarks/disentangle.py` and `fedre-attack` measured on recorded runs.

    python benchmarks/disentangle.py RUN [RUN ...] --out rows.csv
    fedre-attack RUN --target recovered-prototypes --threat strong --set eval.max_images=1 \\
        --set eval.ceiling=0 --targets 100                                  (for each run)
    python benchmarks/disentangle_figure.py --rows rows.csv --attacks RUN/attacks/dip-... [...]

Writes results/data/disentangling.csv (means over prototypes), results/data/recovered_images.csv
(one row per image and source) and docs/images/disentangling.png in this checkout, or below another
folder (--out), and prints the table of images. Without options the figure is drawn again from the
two CSV files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import tools
import torch
from disentangle import CHOSEN_SEEDS
from matplotlib.axes import Axes
from torch import Tensor

from fedre_privacy.core.files import read_tensors
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.eval.report.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    blank,
)
from fedre_privacy.runs.run import Run

ROOT = Path(__file__).resolve().parent.parent
MEANS = Path("results/data/disentangling.csv")
IMAGES = Path("results/data/recovered_images.csv")
FIGURE = Path("docs/images/disentangling.png")

ROUNDS = ("1 n", "2 n", "3 n", "all")
BUCKETS = {"all": (1, 10**9), "1": (1, 1), "2-30": (2, 30), "> 30": (31, 10**9)}
LINES = {
    "aligned": (BLUE, "-", "o"),
    "aligned, class means": (SKY, "-", "s"),
    "kalman + head": (VERMILLION, "-", "o"),
    "least squares": (GREEN, "-", "o"),
    "ridge": (ORANGE, "-", "o"),
    "public class mean": (PURPLE, "--", ""),
    "last upload": (BLACK, "--", ""),
}
SOURCES = {
    "true": "true\nprototype",
    "target": "recovered\nprototype",
    "actual": "entangled\nupload",
    "floor": "no upload\n(floor)",
}


def means_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over prototypes by bucket, solver and rounds, with their number and the seeds.

    Raises:
        ValueError: some of the runs are those on which settings were chosen, others are not.
    """
    if rows["kind"].nunique() > 1:
        raise ValueError(f"rows of several kinds do not mix: {', '.join(rows['kind'].unique())}")
    parts = []
    for name, (low, high) in BUCKETS.items():
        part = rows[rows["counts"].between(low, high)]
        table = part.groupby(["solver", "rounds"]).agg(
            centred_cosine=("centred_cosine", "mean"),
            relative_error=("relative_error", "mean"),
            identified=("identified", "mean"),
            n=("identified", "size"),
        )
        parts.append(table.reset_index().assign(images=name))
    seeds = " ".join(map(str, sorted(rows["seed"].unique())))
    return pd.concat(parts).assign(seeds=seeds, kind=rows["kind"].iloc[0])


def images_of(folders: list[Path]) -> pd.DataFrame:
    """One row per single-image class and source: PSNR, SSIM, found first in the line-up.

    The picture made of a client's entangled upload is compared with the same image as the others,
    not with the nearest of all that entered the upload, which would favour it.
    """
    parts = []
    for folder in folders:
        rows = pd.read_csv(folder / "scores.csv")
        images = read_tensors(folder / "recovered.safetensors")["images"]
        if len(rows) != len(images):
            raise ValueError(f"{folder} holds {len(images)} images and {len(rows)} scores")
        run = Run(folder.parent.parent)
        seed = run.settings.train.seed
        upload = {
            int(c): images[i]
            for i, (c, g) in enumerate(zip(rows["client"], rows["group"], strict=True))
            if g == "actual"
        }
        keep = ["group", "client", "label", "support_size", "psnr", "ssim", "hit1"]
        parts.append(rows.loc[rows["group"].isin(["target", "true"]), keep].assign(seed=seed))
        target = rows[rows["group"] == "target"]
        originals = singles(run, target)
        shown = torch.stack([upload[c] for c in target["client"]])
        same = target[["client", "label", "support_size"]].assign(
            group="actual",
            psnr=metrics.get("psnr")()(shown, originals).numpy(),
            ssim=metrics.get("ssim")()(shown, originals).numpy(),
            hit1=np.nan,
            seed=seed,
        )
        parts.append(same)
        floor = target[["client", "label", "support_size"]].assign(
            group="floor",
            psnr=target["psnr_floor"],
            ssim=target["ssim_floor"],
            hit1=np.nan,
            seed=seed,
        )
        parts.append(floor)
    return pd.concat(parts)


def singles(run: Run, targets: pd.DataFrame) -> Tensor:
    """The one training image of each client and class, (n, C, H, W) in [0, 1]."""
    data = run.settings.data.load()
    train, _ = run.split_indices()
    found = []
    for client, label in zip(targets["client"], targets["label"], strict=True):
        own = train[client][data.labels[train[client]] == label]
        if len(own) != 1:
            raise ValueError(f"client {client} holds {len(own)} images of class {label}")
        found.append(data.floats(own)[0])
    return torch.stack(found)


def interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """95 % interval of a mean, values resampled."""
    rng = np.random.default_rng(0)
    means = rng.choice(values, (draws, len(values))).mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def print_images(images: pd.DataFrame) -> None:
    """Print the table of images, seeds on which settings were chosen apart."""
    chosen = images["seed"].isin(CHOSEN_SEEDS)
    for part in (images[chosen], images[~chosen]):
        if len(part):
            print("seeds", *sorted(part["seed"].unique()))
            print_sources(part)


def print_sources(images: pd.DataFrame) -> None:
    """Print mean and spread of each source, and the paired differences."""
    for group, title in SOURCES.items():
        part = images[images["group"] == group]
        print(
            f"{' '.join(title.split()):45} n {len(part):3}  PSNR {part['psnr'].mean():.2f} +- "
            f"{part['psnr'].std():.2f}  SSIM {part['ssim'].mean():.3f} +- {part['ssim'].std():.3f}"
            f"  found {part['hit1'].mean():.3f}"
        )
    wide = images[images["group"].isin(["target", "true", "floor"])].pivot_table(
        index=["seed", "client", "label"], columns="group", values=["psnr", "ssim"]
    )
    for metric in ("psnr", "ssim"):
        for one, other in (("target", "floor"), ("true", "target")):
            gap = (wide[metric, one] - wide[metric, other]).to_numpy()
            low, high = interval(gap)
            print(f"{metric}: {one} less {other} {gap.mean():.3f} [{low:.3f}, {high:.3f}]")


def draw(means: pd.DataFrame, images: pd.DataFrame, path: Path) -> None:
    """Draw the figure from the two tables; of images, those of seeds of no choice."""
    figure = blank(7.2, 2.9)
    grid = figure.add_gridspec(
        1, 3, width_ratios=(1, 1, 1.15), left=0.065, right=0.99, top=0.9, bottom=0.3, wspace=0.3
    )
    whole = means[means["images"] == "all"]
    panels = (("identified", "identification@1"), ("centred_cosine", "centred cosine"))
    axes = [figure.add_subplot(grid[0, i]) for i in range(3)]
    for axis, (column, title) in zip(axes, panels, strict=False):
        for solver, (colour, style, marker) in LINES.items():
            part = whole[whole["solver"] == solver].set_index("rounds").reindex(ROUNDS)
            axis.plot(range(4), part[column], style, color=colour, marker=marker, ms=3.5, lw=1.3,
                      label=solver)  # fmt: skip
        axis.set_xticks(range(4), ["k", "2k", "3k", "all"])
        axis.set_xlabel("rounds observed (client of k classes)", fontsize=7)
        axis.set_ylim(-0.05, 1.05)
        told = f"n = {int(whole['n'].max())}, seeds {whole['seeds'].iloc[0]}"
        axis.set_title(f"{title} ({told})", fontsize=7.5)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.02, 0.0), ncol=4,
                  fontsize=6.5, frameon=False, columnspacing=1.2, handlelength=2)  # fmt: skip
    dots(axes[2], images[~images["seed"].isin(CHOSEN_SEEDS)])
    for axis in axes:
        axis.tick_params(labelsize=6.5)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", lw=0.3, color="0.85")
        axis.set_axisbelow(True)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=200)


def dots(axis: Axes, images: pd.DataFrame) -> None:
    """PSNR of every image from each source, with means."""
    rng = np.random.default_rng(0)
    for place, (group, colour) in enumerate(
        zip(SOURCES, (GREEN, BLUE, VERMILLION, BLACK), strict=True)
    ):
        values = images.loc[images["group"] == group, "psnr"].to_numpy()
        shift = rng.uniform(-0.18, 0.18, len(values))
        axis.plot(place + shift, values, "o", ms=2.5, mew=0, color=colour, alpha=0.55)
        axis.plot([place - 0.3, place + 0.3], [values.mean()] * 2, color=colour, lw=1.8)
        axis.annotate(f"{values.mean():.1f}", (place + 0.32, values.mean()), fontsize=6.5,
                      va="center", color=colour)  # fmt: skip
    count = len(images[images["group"] == "target"])
    axis.set_xlim(-0.5, 3.7)
    axis.set_xticks(range(4), list(SOURCES.values()), fontsize=6.5)
    axis.set_xlabel("inverted from", fontsize=7)
    seeds = " ".join(map(str, sorted(images["seed"].unique())))
    axis.set_title(f"PSNR, dB (n = {count}, seeds {seeds})", fontsize=7.5)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--rows", nargs="+", type=Path, help="scores of the solvers")
    options.add_argument("--attacks", nargs="+", type=Path, help="folders of image attacks")
    options.add_argument("--out", type=Path, default=ROOT, help="folder of tables and figure")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Write tables and figure."""
    given = parser().parse_args(arguments)
    means_at, images_at = given.out / MEANS, given.out / IMAGES
    means_at.parent.mkdir(parents=True, exist_ok=True)
    if given.rows:
        means = means_of(pd.concat([pd.read_csv(path) for path in given.rows]))
        means.to_csv(means_at, index=False, float_format="%.4f")
    if given.attacks:
        images_of(given.attacks).to_csv(images_at, index=False, float_format="%.4f")
    images = pd.read_csv(images_at)
    print_images(images)
    draw(pd.read_csv(means_at), images, given.out / FIGURE)


if __name__ == "__main__":
    main()
