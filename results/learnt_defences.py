"""Tables and figure of learnt_defences.md, from a finished sweep whose models were kept.

    fedre-benchmark sweeps/learnt_defences.yaml --dataset digits --set data.size=16 --out FOLDER
    python results/learnt_defences.py FOLDER --runs RUNS

It writes into data/, and the figure beside:

    learnt_defences.csv             the sweep's first protocol, the first setting of each defence
    learnt_defences_strengths.csv   the same protocol, the other settings
    learnt_defences_protocols.csv   the other protocols, the first settings
    learnt_defences_all.csv         all that was measured
    learnt_defences_predictors.csv  the first protocol, without an attack

What papers claim stands in learnt_defences_claims.csv and is written by hand. With --only FILE.csv
all that was measured goes into that file, and nothing else is written. Of the folder of
sweeps/soteria_gradients.yaml (--gradients) learnt_defences_gradients.csv is written, and of that of
sweeps/learnt_defences_attacks.yaml (--attacks) learnt_defences_attacks.csv.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedre_privacy.benchmarking.jobs import read_result
from fedre_privacy.benchmarking.results import JobResult, frame
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.types import RandomModule
from fedre_privacy.defenses.nopeek import distance_correlation
from fedre_privacy.eval.measures import SINGLE
from fedre_privacy.eval.report import save_figure
from fedre_privacy.eval.report.frontier import Point, frontier
from fedre_privacy.experiments.fisher_bounds import information
from fedre_privacy.reports.benchmark import SWEEP
from fedre_privacy.runs.folder import COMPLETE
from fedre_privacy.runs.preparation import prepare
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import ADAPTIVE, NAIVE

HERE = Path(__file__).resolve().parent
NAME = "learnt_defences"
ALL = ""
IMAGES = 8
"""Training images of each client that a predictor looks at."""
TINY = 1e-6
"""Share of the largest singular value below which one counts as 0."""


def spread(values: pd.Series, sign: str = "", digits: int = 1) -> str:
    """Mean over seeds, and sd where there are several; "-" where nothing was measured."""
    known = values.dropna()
    if known.empty:
        return "-"
    mean = f"{known.mean():{sign}.{digits}f}"
    return mean if len(known) < 2 else f"{mean} ± {known.std():.{digits}f}"


@dataclass(frozen=True)
class Variant:
    """Measurements of one protocol under one defence, of all seeds; see `frame`."""

    label: str
    rows: pd.DataFrame

    @property
    def protocol(self) -> str:
        """Its name."""
        return self.label.partition(" + ")[0]

    @property
    def defence(self) -> str:
        """Its name; "none" without one."""
        return self.label.partition(" + ")[2].partition(":")[0] or "none"

    @property
    def given(self) -> str:
        """The defence with what is set, as a sweep names it."""
        return self.label.partition(" + ")[2] or "none"

    @property
    def setting(self) -> str:
        """What is set of the defence."""
        return self.label.partition(":")[2]

    @property
    def seeds(self) -> list[int]:
        """Those that were trained."""
        return sorted(self.rows["seed"].unique())

    def get(
        self,
        measure: str,
        column: str,
        attacker: str = ADAPTIVE,
        group: str = ALL,
        attack: str = ALL,
    ) -> pd.Series:
        """One number for each seed that has it; an attack where several answer the same."""
        own = self.rows[
            (self.rows["measure"] == measure)
            & (self.rows["attacker"] == attacker)
            & (self.rows["group"].fillna("") == group)
        ]
        if attack != ALL:
            own = own[own["attack"] == attack]
        return own.set_index("seed")[column].astype(float)

    def once(self, column: str) -> pd.Series:
        """What does not depend on the attack, for each seed."""
        return self.rows.groupby("seed")[column].first().astype(float)

    def pair(self, measure: str, group: str = ALL, digits: int = 2) -> str:
        """What naive and adaptive attackers reach, with the floor in brackets."""
        naive, adaptive = (
            self.get(measure, "value", who, group).mean() for who in (NAIVE, ADAPTIVE)
        )
        floor = self.get(measure, "floor", group=group).mean()
        if pd.isna(adaptive):
            return "-"
        shown = "-" if pd.isna(naive) else f"{naive:.{digits}f}"
        return f"{shown}, {adaptive:.{digits}f} ({floor:.{digits}f})"

    def row(self) -> dict[str, str]:
        """A row of the table."""
        adaptive, naive = (self.get("psnr", "over", who) for who in (ADAPTIVE, NAIVE))
        more = adaptive.mean() - naive.mean()
        return {
            "defence": f"`{self.defence}`" if self.setting else self.defence,
            "setting": f"`{self.setting}`" if self.setting else "-",
            "accuracy": spread(self.once("accuracy"), digits=2),
            "naive, dB over floor": spread(naive, "+"),
            "adaptive, dB over floor": spread(adaptive, "+"),
            "false security, dB": "-" if naive.empty else f"{more:+.1f}",
            "found: naive, adaptive (guess)": self.pair("hit1"),
            "n": f"{self.get('psnr', 'n').sum():.0f}",
            "one image each: naive": spread(self.get("psnr", "over", NAIVE, SINGLE), "+"),
            "one image each: adaptive": spread(self.get("psnr", "over", group=SINGLE), "+"),
            "found of these": self.pair("hit1", SINGLE),
            "n of these": f"{self.get('psnr', 'n', group=SINGLE).sum():.0f}",
            "membership: naive, adaptive (floor)": self.pair("auc"),
            "KiB a round": f"{self.once('up_bytes').mean() / 1024:.0f}",
            "seconds a round": f"{self.once('round_s').min():.2f}",
            "seeds": str(len(self.seeds)),
        }

    def attack_row(self) -> dict[str, str]:
        """A row of the table of several adaptive attacks on images."""
        names = self.rows["attack"].unique()
        over = {name: self.get("psnr", "over", attack=name) for name in names}
        best = max(names, key=lambda name: over[name].mean())
        row = {
            "protocol": self.protocol,
            "defence": f"`{self.given}`" if self.setting else self.given,
            "n": f"{self.get('psnr', 'n', attack=best).sum():.0f}",
        }
        for name in names:
            hits = self.get("hit1", "value", attack=name).mean()
            cell = f"{spread(over[name], '+')}, {hits:.2f}"
            row[f"`{name}`"] = f"**{cell}**" if name == best else cell
        row["guess"] = f"{self.get('hit1', 'floor', attack=best).mean():.2f}"
        return row

    def candidate_row(self) -> dict[str, str]:
        """A row of the table of line-ups by representations."""
        row = {
            "protocol": self.protocol,
            "defence": f"`{self.given}`" if self.setting else self.given,
            "accuracy": spread(self.once("accuracy"), digits=2),
        }
        for title, group in (("", ALL), ("one image each: ", SINGLE)):
            for who in (NAIVE, ADAPTIVE):
                row[f"{title}found, {who}"] = spread(
                    self.get("retrieved1", "value", who, group), digits=2
                )
            row[f"{title}guess"] = f"{self.get('retrieved1', 'floor', group=group).mean():.2f}"
            row[f"{title}n"] = f"{self.get('retrieved1', 'n', group=group).sum():.0f}"
        if (self.rows["measure"] == "auc").any():
            row["membership: naive, adaptive (floor)"] = self.pair("auc")
        return row

    def gradient_row(self) -> dict[str, str]:
        """A row of the table of gradients, whose accuracy after one round says nothing."""
        whole = self.row()
        kept = (
            "naive, dB over floor", "adaptive, dB over floor", "false security, dB",
            "found: naive, adaptive (guess)", "n", "seeds",
        )  # fmt: skip
        setting = f"`{self.setting}`" if self.setting else "-"
        own = {"behind a gradient": self.protocol, "share of coordinates set to 0": setting}
        return own | {key: whole[key] for key in kept}


def variants_of(results: Sequence[JobResult]) -> list[Variant]:
    """The variants that finished, in the order of their first seeds."""
    rows = frame([one for one in results if one["status"] == COMPLETE])
    return [Variant(str(label), part) for label, part in rows.groupby("label", sort=False)]


def in_order(
    variants: Sequence[Variant], protocols: Sequence[str], asked: Sequence[str]
) -> list[Variant]:
    """Variants by protocol and name of the defence, none first, and by place in the sweep."""
    return sorted(
        (one for one in variants if one.given in asked),
        key=lambda one: (
            protocols.index(one.protocol),
            one.defence != "none",
            one.defence,
            asked.index(one.given),
        ),
    )


def first_settings(asked: Sequence[str]) -> set[str]:
    """The first setting of each defence of a sweep."""
    return set({one.partition(":")[0]: one for one in reversed(asked)}.values())


@dataclass(frozen=True)
class Prediction:
    """What may be said of a training without an attack, mean over images.

    Args:
        information: trace of the Fisher information under noise of standard deviation 1, per pixel
            (dFIL; Maeng et al., NeurIPS 2023, by Hannun et al., UAI 2021).
        correlation: distance correlation of images and representations (what NoPeek makes small).
        rank: singular values above `TINY` of the gradient of a representation by its image, share
            of the pixels: FSInfo takes the logarithm of a product of all pixels' values.
    """

    information: float
    correlation: float
    rank: float


def rank_share(encode: Callable[[Tensor], Tensor], image: Tensor) -> float:
    """Rank of the gradient of encode by an image (C, H, W), over its pixels, in [0, 1]."""
    width = encode(image[None]).shape[1]
    at = image.expand(width, *image.shape).clone().requires_grad_()
    (slopes,) = torch.autograd.grad(encode(at).diagonal().sum(), at)
    values = torch.linalg.svdvals(slopes.flatten(1).double())
    return float((values > TINY * values[0]).sum()) / image.numel()


def predict(run: Run) -> Prediction:
    """Read a run's kept models, at the last round, on its clients' own images."""
    prepared = prepare(run.settings, torch.device("cpu"))
    rounds = run.settings.train.rounds
    found = []
    for client, own in enumerate(run.split_indices()[0]):
        images = prepared.data.images[own[:IMAGES]]
        images = images.float() / 255 if images.dtype == torch.uint8 else images
        encode: nn.Module = run.extractor(client, rounds).eval()
        with torch.no_grad():
            rng = torch.Generator().manual_seed(client)
            drawn = isinstance(encode, RandomModule)
            sent = encode.sample(images, rng) if drawn else encode(images)  # type: ignore[operator]
        found.append(
            (
                float(information(encode, images, 1.0).mean()) / images[0].numel(),
                float(distance_correlation(images, sent)),
                rank_share(encode, images[0]),
            )
        )
    return Prediction(*(sum(values) / len(values) for values in zip(*found, strict=True)))


def correlations(variants: Sequence[Variant], runs: Path) -> list[dict[str, str]]:
    """How predictors rank trainings, beside how adaptive attacks do."""
    rows = []
    for one in variants:
        over, hits = one.get("psnr", "over"), one.get("hit1", "value")
        for seed, name in one.rows.groupby("seed")["run"].first().items():
            if (runs / str(name) / "models").is_dir():
                own = predict(Run(runs / str(name)))
                found = {"over": over[seed], "hits": hits[seed]}
                rows.append({**vars(own), **found, "seed": seed, "setting": one.given})
    return ranked(pd.DataFrame(rows))


PREDICTORS = {
    "information": "Fisher information a pixel",
    "correlation": "distance correlation",
    "rank": "rank of the gradient over pixels",
}


DRAWS = 2000
"""Of settings, for an interval."""


def ranked(table: pd.DataFrame) -> list[dict[str, str]]:
    """Spearman's correlations of predictors with what was found, trainings of a seed ranked apart.

    So that easy seeds do not count for a predictor. Intervals draw settings, with all their seeds.

    Args:
        table: columns seed, setting, over, hits and those of `Prediction`; a row for each training.
    """
    ranks = table.groupby("seed")[[*PREDICTORS, "over", "hits"]].rank()
    ranks -= ranks.groupby(table["seed"]).transform("mean")
    return [
        {
            "predictor": title,
            "smallest": f"{table[key].min():.2g}",
            "largest": f"{table[key].max():.2g}",
            "with adaptive dB over floor": correlation(ranks[key], ranks["over"], table["setting"]),
            "with adaptive found": correlation(ranks[key], ranks["hits"], table["setting"]),
            "n trainings": str(len(table)),
        }
        for key, title in PREDICTORS.items()
    ]


def correlation(first: pd.Series, second: pd.Series, settings: pd.Series) -> str:
    """Pearson's correlation with its 95 % interval, settings drawn with replacement; "-": none."""
    whole = first.corr(second)
    if math.isnan(whole):
        return "-"
    moments = pd.DataFrame(
        {"n": 1.0, "x": first, "y": second, "xx": first**2, "yy": second**2, "xy": first * second}
    )
    sums = moments.groupby(settings).sum()
    shares = np.full(len(sums), 1 / len(sums))
    drawn = np.random.default_rng(0).multinomial(len(sums), shares, DRAWS) @ sums.to_numpy()
    n, x, y, xx, yy, xy = drawn.T
    with np.errstate(invalid="ignore", divide="ignore"):  # draws of one setting alone
        found = (xy - x * y / n) / np.sqrt((xx - x**2 / n) * (yy - y**2 / n))
    low, high = np.nanquantile(found, (0.025, 0.975))
    return f"{whole:+.2f} [{low:+.2f}, {high:+.2f}]"


def points(variants: Sequence[Variant]) -> list[Point]:
    """Variants by accuracy and by what adaptive attackers reach on all targets."""
    made = []
    for one in variants:
        over, accuracy = one.get("psnr", "over"), one.once("accuracy")
        label = f"{one.defence} {one.setting}".strip()
        made.append(
            Point(
                label,
                accuracy.mean(),
                accuracy.std() if len(accuracy) > 1 else None,
                one.once("up_scalars").mean(),
                over.mean(),
                over.std() if len(over) > 1 else None,
                "linear",
                len(one.seeds),
                targets=int(one.get("psnr", "n").sum()),
            )  # fmt: skip
        )
    return made


def write(rows: Sequence[dict[str, str]], path: Path) -> None:
    """A CSV file of rows that have the same keys."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write tables and figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of the benchmark")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of its runs")
    parser.add_argument("--gradients", action="store_true", help="it is soteria_gradients.yaml's")
    parser.add_argument("--attacks", action="store_true", help="it is that of several attacks")
    parser.add_argument("--candidates", action="store_true", help="it is that of line-ups")
    parser.add_argument("--only", type=Path, metavar="FILE.csv", help="one table, and no more")
    parser.add_argument("--out", type=Path, default=HERE / "data", help="folder of the tables")
    parser.add_argument("--figure", type=Path, default=HERE.parent / "docs" / "images" / NAME)
    chosen = parser.parse_args(arguments)
    files = sorted((chosen.folder / "jobs").glob("*.json"))
    if chosen.gradients:
        found = variants_of([read_result(path) for path in files])
        found.sort(key=lambda one: (one.protocol != "one image", one.defence != "none", one.label))
        write([one.gradient_row() for one in found], chosen.out / f"{NAME}_gradients.csv")
        return
    rows = {"_attacks": Variant.attack_row, "_candidates": Variant.candidate_row}
    kind = "_attacks" if chosen.attacks else "_candidates" if chosen.candidates else ""
    file = NAME + kind
    labels = list(load_yaml(chosen.folder / SWEEP).values["vary"])
    parts = [label.partition(" + ") for label in labels]
    protocols = list(dict.fromkeys(protocol for protocol, _, _ in parts))
    asked = list(dict.fromkeys(given or "none" for _, _, given in parts))
    variants = in_order(variants_of([read_result(path) for path in files]), protocols, asked)
    if kind:
        write([rows[kind](one) for one in variants], chosen.only or chosen.out / f"{file}.csv")
        return
    usual = first_settings(asked)
    named = [{"protocol": one.protocol, **one.row()} for one in variants]
    if chosen.only:
        write(named, chosen.only)
        return
    own = [one for one in variants if one.protocol == protocols[0]]
    weak = [one for one in own if one.given in usual]
    write([one.row() for one in weak], chosen.out / f"{NAME}.csv")
    write(
        [one.row() for one in own if one.given not in usual], chosen.out / f"{NAME}_strengths.csv"
    )
    write(named, chosen.out / f"{NAME}_all.csv")
    others = [
        {"protocol": one.protocol, **one.row()}
        for one in variants
        if one not in own and one.given in usual
    ]
    write(others, chosen.out / f"{NAME}_protocols.csv")
    write(correlations(own, chosen.runs), chosen.out / f"{NAME}_predictors.csv")
    most = max(len(one.seeds) for one in weak)
    drawn = frontier(
        points([one for one in weak if len(one.seeds) == most]),
        accuracy="accuracy on clients' own test images",
        caption=f"Adaptive linear attack, all targets; {most} seeds each, error bars: their sd. "
        "Dashed: what no other defence beats in accuracy and leakage.",
    )
    for path in save_figure(drawn, chosen.figure, dpi=120):
        if path.suffix != ".png":
            path.unlink()


if __name__ == "__main__":
    main()
