"""How well do class statistics tell members from others of the same class?

    python benchmarks/statistics_membership.py --out membership.csv
    python benchmarks/statistics_membership.py --backbone cnn4 --data FILE.npz --out membership.csv

Representations are as for class_statistics.py: by default those of an untrained cnn4 on the
built-in digits. `statistics-membership` scores the images behind the statistics of each class and
32 others of the class. The floor sees the image alone: how near it is to the mean of 32 public
images of the class. ``alone`` is the share that lies where no member can, without an order inside
of boxes. ``other`` is a control: statistics of another client. Rows are kept; ``--table FILE`` sums
them up: mean area under the curve over classes and seeds with its 95 % interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from class_statistics import Case, backbone_options, loaded_features, statistics
from tools import RowsFile, options
from torch import Tensor

from fedre_privacy.attacks.statistics_membership import LEAST, outside_of, scores_by_statistics

OTHERS = 32
"""Images of a class that are no members, and public ones."""
FIELDS = (
    "backbone",
    "covariance",
    "precision",
    "change",
    "images",
    "seed",
    "class",
    "auc",
    "alone",
    "floor",
)
KEY = FIELDS[:6]
MOST = 32
MORE = 64, 100
"""Larger classes, tried for variances where there are images enough."""


def cases() -> Iterator[Case]:
    """All settings of the table, five classes each."""
    for form, precision in (
        ("diagonal", "float32"), ("diagonal", "float16"), ("moment", "float16"),
        ("full", "float32"), ("full", "float16"),
    ):  # fmt: skip
        for images in (1, 2, 8, MOST):
            yield Case(form, images, precision, classes=5)
    for images in MORE:
        yield Case("diagonal", images, classes=5)
    for form in ("diagonal", "full"):
        for images in (8, MOST, *(MORE if form == "diagonal" else ())):
            yield Case(form, images, change="other", classes=5)
    for loud in ("0.1", "0.3", "1"):
        for images in (8, MOST):
            yield Case("full", images, change=f"noise={loud}", classes=5)


def areas(case: Case, features: Tensor, labels: Tensor, seed: int) -> list[list[float]]:
    """Area under the curve of each class, that of shares alone, and that of the floor."""
    rng = np.random.default_rng([seed, case.images, case.classes, 7])
    most = max(MOST, case.images)
    needed = needed_images(case)
    drawn = [
        features[torch.from_numpy(rng.choice(np.flatnonzero(labels.numpy() == c), needed, False))]
        for c in range(case.classes)
    ]
    rows = [own.double() for own in drawn]
    own = [one[: case.images] for one in rows]
    sent = [one[most : most + case.images] for one in rows] if case.change == "other" else own
    out: dict[int, list[float]] = {c: [] for c in range(case.classes)}
    for one in statistics(case, sent, rng):
        for label in one.labels.tolist():
            candidates = torch.cat([own[label], rows[label][2 * most : 2 * most + OTHERS]])
            asked = torch.full((len(candidates),), label)
            own_class = (one.labels == label).nonzero().squeeze(1)
            told = one.take(own_class) if case.form == "full" else one
            scores, _ = scores_by_statistics(told, candidates, asked)
            shares = outside_of(told, candidates, asked).shares.clamp(min=LEAST**2)
            public = rows[label][2 * most + OTHERS :].mean(0)
            near = (candidates - public).square().sum(1)
            out[label] = [area(values, case.images) for values in (-scores, shares, near)]
    return list(out.values())


def needed_images(case: Case) -> int:
    """Images of a class that a setting takes."""
    return 2 * max(MOST, case.images) + 2 * OTHERS


def area(values: Tensor, members: int) -> float:
    """Share of pairs (member, other) in which the member has less; ties count half."""
    apart = values[:members, None] - values[None, members:]
    return float((apart < 0).double().mean() + 0.5 * (apart == 0).double().mean())


def _interval(gains: pd.Series) -> str:
    half = 1.96 * float(gains.std(ddof=1)) / len(gains) ** 0.5
    return f"{gains.mean():+.3f} [{gains.mean() - half:+.3f}, {gains.mean() + half:+.3f}]"


def table(path: Path) -> pd.DataFrame:
    """Means over classes and seeds, with intervals."""
    rows = pd.read_csv(path)
    found = []
    for key, own in rows.groupby(list(KEY[1:5]), sort=False):
        values = own["auc"]
        half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5
        found.append(
            {
                **dict(
                    zip(("covariance", "precision", "change", "images a class"), key, strict=True)
                ),
                "seeds": own["seed"].nunique(),
                "n (classes)": len(own),
                "AUC": f"{values.mean():.3f}",
                "95 % interval": f"[{values.mean() - half:.3f}, "
                f"{min(values.mean() + half, 1):.3f}]",
                "AUC of shares alone": f"{own['alone'].mean():.3f}",
                "gain, 95 % interval": _interval(values - own["alone"]),
                "AUC of the floor": f"{own['floor'].mean():.3f}",
            }
        )
    return pd.DataFrame(found)


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = options(__doc__)
    backbone_options(made)
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--only", default="", help="settings whose name holds this text")
    made.add_argument("--out", type=Path, required=True, help="CSV file; its rows are kept")
    made.add_argument("--table", type=Path, help="CSV file for the summary")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute what the file lacks."""
    args = parser().parse_args(arguments)
    features, labels = loaded_features(args, 2 * MOST + 2 * OTHERS)
    file = RowsFile(args.out, FIELDS, KEY)
    done = file.done()
    for case in cases():
        name = f"{case.form} {case.precision} {case.change} {case.images}"
        if args.only not in name or int(labels.bincount().min()) < needed_images(case):
            continue
        for seed in args.seeds:
            values = (args.backbone, case.form, case.precision, case.change, case.images, seed)
            key = tuple(map(str, values))
            if key in done:
                continue
            found = areas(case, features, labels, seed)
            file.add(
                [
                    dict(zip(KEY, key, strict=True))
                    | {"class": label}
                    | {
                        name: f"{value:.5f}"
                        for name, value in zip(FIELDS[-3:], values, strict=True)
                    }
                    for label, values in enumerate(found)
                ]
            )
            mean = sum(each[0] for each in found) / len(found)
            print(f"{name} images, seed {seed}: AUC {mean:.3f}", flush=True)
    if args.table:
        table(args.out).to_csv(args.table, index=False)


if __name__ == "__main__":
    main()
