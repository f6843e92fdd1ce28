"""Which of many candidate images is behind a vector of a public backbone, and what is on it?

    python benchmarks/retrieval.py --out retrieval.csv
    python benchmarks/retrieval.py --data FILE.npz --out retrieval.csv

Ten clients share one frozen backbone. `nearest-candidate` answers for representations of single
images, for prototypes, and for what `unpool` finds in class statistics, at several depths. A row of
the file is a depth, a kind of target, a number of images behind it and a seed; what has a row is
not computed again. ``noise`` and ``other`` are controls: rows of noise of the targets' mean and
spread, or those of another target.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tools import RowsFile
from torch import Tensor

import fedre_privacy as fp
from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import Prototypes, Representations
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.runs.resolution import resolve_attack

TARGETS = (
    ("fedgh", "representations"),
    ("fedgh", "prototypes"),
    ("fedpft", "recovered-prototypes"),
)
BINS = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 32), (33, None))
FIELDS = (
    "backbone", "size", "depth", "target", "images", "change", "seed", "n", "among", "first",
    "guess", "five", "guess5", "present", "class", "class_guess", "seconds",
)  # fmt: skip


def training(protocol: str, asked: argparse.Namespace, depth: int, seed: int) -> Any:
    """The recorded run of a federation over the frozen backbone."""
    given: dict[str, Any] = {
        "model.size": asked.size, "model.trainable": "head", "data.per_class": asked.per_class,
        "partition.alpha": 1.0, "train.train_ratio": 0.25, "train.seed": seed,
        "record.keep_every": 1,
    }  # fmt: skip
    if depth >= 0:
        given["model.depth"] = depth
    if not asked.data:
        given["data.size"] = 32
    data = f"npz:{asked.data}" if asked.data else "digits"
    return fp.train(
        protocol, dataset=data, models=asked.backbone, clients=asked.clients, rounds=1, set=given,
        runs=asked.runs,
    )  # fmt: skip


def changed(seen: Observation, change: str) -> Observation:
    """The observation whose targets hold other rows."""
    rows, _ = seen.target_rows()
    rng = torch.Generator().manual_seed(0)
    moved = rows.roll(1, 0)
    if change == "noise":
        moved = rows.mean(0) + rows.std(0) * torch.randn(rows.shape, generator=rng)
    targets, at = [], 0
    for upload in seen.targets:
        artifacts: list[Prototypes | Representations] = []
        for one in upload.artifacts:
            labels: Tensor = one.tensors()["labels"]
            own = moved[at : at + len(labels)]
            at += len(labels)
            kind = Representations if isinstance(one, Representations) else Prototypes
            artifacts.append(kind(own, labels))
        targets.append(Upload(upload.client, upload.round, tuple(artifacts)))
    return replace(seen, targets=tuple(targets))


def rows_of(
    asked: argparse.Namespace, depth: int, protocol: str, target: str, seed: int
) -> Iterator[dict[str, object]]:
    """One row for each number of images behind a target, and for each control."""
    run = training(protocol, asked, depth, seed)
    values: dict[str, Any] = {
        "attack": "nearest-candidate", "threat": "public-backbone", "target": target,
        "eval": {"targets": asked.targets, "gallery": asked.gallery, "seed": seed},
    }  # fmt: skip
    if target == "recovered-prototypes":
        values["via"] = "unpool"
    problems: list[str] = []
    settings = resolve_attack(values, {}, problems)
    if settings is None or problems:
        raise SystemExit("\n".join(problems))
    trial = prepare_attack(run, settings)
    for change in ("none", "noise", "other"):
        seen = trial.observation if change == "none" else changed(trial.observation, change)
        began = time.process_time()
        card = trial.score(settings.attack(seen, Context(seed)))
        seconds = round(time.process_time() - began, 1)
        floor = card.get("class_found").floor or float("nan")
        for low, high in BINS:
            inside = card.rows["images"].between(low, high or 10**9)
            part = card.rows[inside]
            if not len(part):
                continue
            yield {
                "backbone": asked.backbone, "size": asked.size, "depth": depth, "target": target,
                "images": f"{low}-{high}" if high != low else str(low), "change": change,
                "seed": seed, "n": len(part), "among": int(part["line_up"].max()),
                "first": round(part["retrieved1"].mean(), 4),
                "guess": round(part["guess"].mean(), 4),
                "five": round(part["retrieved5"].mean(), 4),
                "guess5": round((5 * part["guess"]).clip(upper=1).mean(), 4),
                "present": round(part["present"].mean(), 4),
                "class": round(part["class_found"].mean(), 4), "class_guess": round(floor, 4),
                "seconds": seconds,
            }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("--data", type=Path, help="npz file of images; none: the built-in digits")
    made.add_argument("--backbone", default="efficientnet-lite0")
    made.add_argument("--size", type=int, default=64, help="height and width inside (pixels)")
    made.add_argument("--kinds", nargs="+", default=[kind for _, kind in TARGETS], help="of target")
    made.add_argument("--depths", type=int, nargs="+", default=[-1, 3, 11], help="-1: the whole")
    made.add_argument("--per-class", type=int, default=1000)
    made.add_argument("--clients", type=int, default=10)
    made.add_argument("--targets", type=int, default=100)
    made.add_argument("--gallery", type=int, default=100, help="images in a line-up")
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs")
    made.add_argument("--out", type=Path, required=True, help="CSV file; its rows are kept")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute what the file lacks."""
    asked = parser().parse_args(arguments)
    file = RowsFile(asked.out, FIELDS, ("backbone", "size", "depth", "target", "seed"))
    done = file.done()
    for depth in asked.depths:
        for protocol, target in TARGETS:
            for seed in asked.seeds if target in asked.kinds else ():
                if (asked.backbone, str(asked.size), str(depth), target, str(seed)) in done:
                    continue
                rows = list(rows_of(asked, depth, protocol, target, seed))
                file.add(rows)
                for row in rows:
                    print(
                        f"block {depth}, {target} of {row['images']}, {row['change']}, seed "
                        f"{seed}: {row['first']} first, guess {row['guess']}, n {row['n']}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
