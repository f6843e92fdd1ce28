"""How many single representations a class's statistics give away.

    python benchmarks/class_statistics.py --out statistics.csv
    python benchmarks/class_statistics.py --backbone efficientnet-lite0 --data FILE.npz --out F.csv

Without ``--backbone`` representations are those of an untrained cnn4 on the built-in digits. With
it they are computed from images (``--data``, or the folder in FEDRE_TEST_DATA) and kept beside the
rows, see backbone_features.py; ``--features`` gives a file of them. Statistics are computed from
them, rounded, shrunk or made noisy, and taken apart without truth; a row of the table is a setting
and a seed. ``noise`` and ``other`` are controls: statistics of noise, and those of another client.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from backbone_features import write_features
from tools import RowsFile
from torch import Tensor

from fedre_privacy.attacks.statistics.decomposition import ClassAnswer, take_apart
from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.core.triangles import pack
from fedre_privacy.data.digits import Digits
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.protocols.blocks.class_statistics import mixture_statistics

WITHIN = 0.01
FIELDS = (
    "backbone", "covariance", "precision", "change", "images", "seed", "classes", "representations",
    "found", "within_10_percent", "answers", "certified", "certified_wrong", "floor",
    "median_error", "seconds_a_class",
)  # fmt: skip
KEY = FIELDS[:7]


@dataclass(frozen=True)
class Case:
    """Statistics of classes of so many images.

    Args:
        form: full, tied, moment, or ``diagonal:K`` and ``full:K`` for mixtures of K components.
        change: none, unbiased, shrunk, ``noise=S`` with S in units of the mean value, or a control.
    """

    form: str
    images: int
    precision: str = "float32"
    change: str = "none"
    classes: int = 10


def cases(brief: bool) -> Iterator[Case]:
    """All settings of the table; brief: three."""
    if brief:
        yield from (Case("full", 2), Case("full", 4, "float16"), Case("tied", 2, classes=3))
        return
    for precision in ("float32", "float16"):
        for images in (1, 2, 3, 4, 6, 8, 12, 16):
            yield Case("full", images, precision)
    for images in (2, 4, 6):
        yield Case("tied", images)
        yield Case("moment", images, "float16")
    for components in (2, 4, 10):
        yield Case(f"diagonal:{components}", 12, "float16")
    yield Case("full:4", 12, "float16")
    for images in (4, 2, 8):
        for change in ("other", "noise", "unbiased", "shrunk"):
            yield Case("full", images, change=change, classes=5)
        for loud in ("0.001", "0.01", "0.03"):
            yield Case("full", images, change=f"noise={loud}", classes=5)
    for loud in ("0.01", "0.03"):
        yield Case("full", 1, change=f"noise={loud}")
    for precision in ("float32", "float16"):
        for images in (24, 32):
            yield Case("full", images, precision, classes=4)


def digits_features(per_class: int) -> tuple[Tensor, Tensor]:
    """Representations (n, 512) of the digits in an untrained cnn4, and their classes."""
    data = Digits(size=32, per_class=per_class).load()
    with seeded_generators(0, "class statistics"):
        net = build_model(ModelSettings(name="cnn4"), 0, data.image_shape, 10).eval()
    with torch.no_grad():
        parts = [net.extractor(data.floats(i)) for i in torch.arange(len(data)).split(100)]
    return torch.cat(parts), data.labels


DIGITS = "cnn4-digits"


def backbone_options(made: argparse.ArgumentParser) -> None:
    """Options that say what represents which images."""
    made.add_argument("--features", type=Path, help="npz file with f (n, d) and y (n,)")
    made.add_argument("--backbone", default=DIGITS, help="architecture; with --features: a name")
    made.add_argument("--data", type=Path, help="npz file with x_train and y_train")
    made.add_argument("--size", type=int, default=128, help="pixels of a backbone's input")


def loaded_features(args: argparse.Namespace, digits: int = 70) -> tuple[Tensor, Tensor]:
    """Representations (n, d) and classes (n,): of a file, a backbone, or so many digits a class."""
    path = args.features
    if path is None and args.backbone == DIGITS:
        return digits_features(digits)
    if path is None:
        path = args.out.with_name(f"{args.backbone}-features.npz")
        write_features(args.backbone, args.data, args.size, path)
    with np.load(path) as given:
        return torch.from_numpy(given["f"]), torch.from_numpy(given["y"].astype(np.int64))


def run(case: Case, features: Tensor, labels: Tensor, seed: int) -> dict[str, object]:
    """One row of the table."""
    rng = np.random.default_rng([seed, case.images, case.classes])
    drawn = [
        torch.from_numpy(rng.choice(np.flatnonzero(labels.numpy() == c), 2 * case.images, False))
        for c in range(case.classes)
    ]
    own = [features[index[: case.images]].double() for index in drawn]
    other = [features[index[case.images :]].double() for index in drawn]
    started = time.process_time()
    answers = list(answered(case, other if case.change == "other" else own, rng))
    seconds = (time.process_time() - started) / case.classes
    errors, best, floor, certain, wrong = [], [], [], 0, 0
    for label, truth in enumerate(own):
        size = truth.norm(dim=1)
        floor.append((truth - truth.mean(0)).norm(dim=1) / size)
        mine = [a for a in answers if a.label == label and len(a.vectors)]
        if not mine:
            best.append(torch.full((len(truth),), torch.inf))
            continue
        apart = torch.cdist(truth, torch.from_numpy(np.concatenate([a.vectors for a in mine])))
        apart /= size[:, None]
        best.append(apart.amin(1))
        errors.append(apart.amin(0))
        sure = torch.from_numpy(np.concatenate([a.certified for a in mine]))
        certain += int(sure.sum())
        wrong += int((apart.amin(0)[sure] > WITHIN).sum())
    reached, trivial = torch.cat(best), torch.cat(floor)
    return {
        "covariance": case.form, "precision": case.precision, "change": case.change,
        "images": case.images, "seed": seed, "classes": case.classes,
        "representations": len(reached), "found": int((reached <= WITHIN).sum()),
        "within_10_percent": int((reached <= 0.1).sum()),
        "answers": sum(map(len, errors)), "certified": certain, "certified_wrong": wrong,
        "floor": int((trivial <= WITHIN).sum()),
        "median_error": f"{float(torch.cat(errors).median()) if errors else float('nan'):.2g}",
        "seconds_a_class": round(seconds, 2),
    }  # fmt: skip


def answered(case: Case, classes: list[Tensor], rng: np.random.Generator) -> Iterator[ClassAnswer]:
    """What is found behind the statistics of all classes."""
    for one in statistics(case, classes, rng):
        seed = int(one.labels[0]) if case.form == "full" else 0
        yield from take_apart(one, seed, tries=20, most=64)


def statistics(
    case: Case, classes: list[Tensor], rng: np.random.Generator
) -> Iterator[ClassStatistics]:
    """What a client with these representations of each class sends; ``full``: class by class."""
    form, _, components = case.form.partition(":")
    kind = getattr(torch, case.precision)
    if components:
        reps = torch.cat(classes)
        labels = torch.arange(len(classes)).repeat_interleave(case.images)
        start = torch.Generator().manual_seed(int(rng.integers(2**31)))
        made = mixture_statistics(reps, labels, int(components), form, start)
        sent = made.artifact if made else None
        if isinstance(sent, ClassStatistics):
            spread = {name: values.to(kind) for name, values in sent.spread.items()}
            yield ClassStatistics(sent.means.to(kind), sent.counts, sent.labels, spread)
        return
    counts = torch.tensor([len(own) for own in classes])
    means = torch.stack([own.mean(0) for own in classes])
    covariances = [(own - own.mean(0)).T @ (own - own.mean(0)) / len(own) for own in classes]
    if form == "full":
        for label, covariance in enumerate(covariances):
            mean, matrix = changed(case, means[label], covariance, rng)
            yield ClassStatistics(
                mean[None].to(kind), counts[:1], torch.tensor([label]),
                {"full": pack(matrix)[None].to(kind)},
            )  # fmt: skip
        return
    if form == "diagonal":
        variances = torch.stack([one.diagonal() for one in covariances]).to(kind)
        yield ClassStatistics(
            means.to(kind), counts, torch.arange(len(classes)), {"diagonal": variances}
        )
        return
    shares = counts / counts.sum()
    pooled = sum(share * own for share, own in zip(shares, covariances, strict=True))
    if form == "moment":
        pooled = pooled + (means.T * shares) @ means
    labels = torch.arange(len(classes))
    yield ClassStatistics(means.to(kind), counts, labels, {form: pack(pooled).to(kind)})


def changed(
    case: Case, mean: Tensor, matrix: Tensor, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Mean and covariance as they are sent."""
    eye = torch.eye(len(mean), dtype=torch.float64)
    if case.change == "unbiased":
        return mean, matrix * case.images / (case.images - 1)
    if case.change == "shrunk":
        return mean, 0.9 * matrix + 0.1 * matrix.trace() / len(mean) * eye
    if case.change == "noise":
        rows = torch.from_numpy(rng.standard_normal((case.images - 1, len(mean)))) * mean.mean()
        return torch.from_numpy(rng.exponential(size=len(mean))) * mean.mean(), rows.T @ rows
    if case.change.startswith("noise="):
        loud = float(case.change.partition("=")[2]) * mean.mean()
        error = torch.from_numpy(rng.standard_normal(matrix.shape))
        sized = loud * matrix.diagonal().mean().sqrt() * (error + error.T) / 2**0.5
        return mean + loud * torch.from_numpy(rng.standard_normal(len(mean))), matrix + sized
    return mean, matrix


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    backbone_options(made)
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--brief", action="store_true", help="three settings")
    made.add_argument("--out", type=Path, required=True, help="CSV file; its rows are kept")
    made.add_argument("--table", type=Path, help="CSV file for the sums over seeds")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute what the file lacks."""
    args = parser().parse_args(arguments)
    features, labels = loaded_features(args)
    file = RowsFile(args.out, FIELDS, KEY)
    done = file.done()
    for case in cases(args.brief):
        for seed in args.seeds:
            named = {
                "backbone": args.backbone, "covariance": case.form, "precision": case.precision,
                "change": case.change, "images": case.images, "seed": seed,
                "classes": case.classes,
            }  # fmt: skip
            if tuple(str(named[name]) for name in KEY) in done:
                continue
            row = named | run(case, features, labels, seed)
            file.add([row])
            print(
                f"{case.form}, {case.precision}, {case.change}, {case.images} images: "
                f"found {row['found']} of {row['representations']}, seed {seed}"
            )
    if args.table:
        table(args.out).to_csv(args.table, index=False)


def table(path: Path) -> pd.DataFrame:
    """Sums over seeds."""
    rows = pd.read_csv(path)
    found = []
    for key, own in rows.groupby(["covariance", "precision", "change", "images"], sort=False):
        errors = own["median_error"].dropna()
        found.append(
            dict(zip(("covariance", "precision", "change", "images a class"), key, strict=True))
            | {
                "seeds": own["seed"].nunique(),
                "n": own["representations"].sum(),
                "found within 1 %": own["found"].sum(),
                "within 10 %": own["within_10_percent"].sum(),
                "found by the class mean": own["floor"].sum(),
                "answers": own["answers"].sum(),
                "certified": own["certified"].sum(),
                "certified and wrong": own["certified_wrong"].sum(),
                "largest median error of a seed": f"{errors.max():.1g}" if len(errors) else "-",
                "CPU seconds a class": round(own["seconds_a_class"].mean(), 2),
            }
        )
    return pd.DataFrame(found)


if __name__ == "__main__":
    main()
