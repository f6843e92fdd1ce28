"""What does an active server gain, what does it cost, and would clients notice?

Trains a protocol with each steering and without (honest twins of the same seeds), attacks the same
targets of both, and runs every detector on what the clients received. Usage:

    python benchmarks/active_servers.py [--protocol fedgh] [--steerings null-head:rounds=1;...]
        [--attacks shadow@public-init;linear@strong] [--seeds 1,2,3] [--trained 3] [--round 1]
        [--partition pra:0.1] [--data FILE.npz] [--part report] [--set KEY=VALUE ...]
        [--eval KEY=VALUE ...] [--out FOLDER]

Accuracy is the mean over clients after the last round; the difference is paired over seeds. Leakage
is of prototypes of one image where clients upload prototypes, `over` a paired difference of the
same targets with a 95 % interval over clients. An attack is NAME:KEY=VALUE,...@THREAT;
HONEST|STEERED asks another one of the honest twins. Detectors: area under the ROC with a 95 %
interval, and the share of steered receipts above all but 1 % of the honest ones.

Images are the built-in digits, or of FILE.npz (x_train, y_train) those on which settings were not
chosen: `--part report` and `--part tuning` share none (`heads.py`).
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from experiments import attacked, training
from heads import PARTS, dataset
from tools import options

from fedre_privacy.benchmarking.honest_twins import HonestTwins
from fedre_privacy.core.config import merge, parse_assignments
from fedre_privacy.experiments.attack import AttackResult
from fedre_privacy.federation.loop import select
from fedre_privacy.partition.base import partitions
from fedre_privacy.runs.resolution import require_resolved, resolve_training
from fedre_privacy.runs.run import Run

SINGLE = ("fedgh", "fedproto", "fedtgp", "fpl")
"""Protocols whose uploads of one image are attacked."""


def trained(steering: str | None, seed: int, asked: Any) -> Run:
    """The run of one seed, with a steering or honest; what was trained before is read back."""
    own = {"name": "digits"}
    if asked.data:
        own = {"name": "npz", "path": dataset(asked.part, "cifar", asked.data, asked.out)[4:]}
    name, _, value = asked.partition.partition(":")
    kind = partitions.get(name)
    values = {
        "data": own,
        "partition": {"name": name, **({kind.shorthand: float(value)} if value else {})},
        "protocol": {"name": asked.protocol},
        "train": {"clients": 10, "rounds": asked.trained, "seed": seed},
        "record": {"keep_every": 1},
    }
    values = merge(values, parse_assignments(asked.set))
    if steering is not None:
        settings = require_resolved(resolve_training(values, {}, problems := []), problems)
        victim = select(settings.train, asked.round)[0]
        values = {**values, "steering": steering.replace("VICTIM", str(victim)).split("+")}
    return training(values, asked.out)


def leaked(run: Run, *, how: str, asked: Any) -> AttackResult:
    """An attack, ``name@threat``, on the chosen round of a run."""
    honest, _, steered = how.partition("|")
    given, _, threat = (steered if steered and run.active else honest).partition("@")
    name, _, settings = given.partition(":")
    own = parse_assignments(settings.split(",")) if settings else {}
    values: dict[str, Any] = {
        "attack": {"name": name, **own},
        "eval": {
            "round": asked.round,
            "targets": asked.targets,
            "ceiling": 0,
            **parse_assignments(asked.eval),
        },
    }
    if threat:
        values["threat"] = threat
    if asked.protocol in SINGLE:
        values["eval"]["max_images"] = 1
    return attacked(run, values)


def show(title: str, frame: pd.DataFrame) -> None:
    """Print a frame, numbers to three digits, empty for what there is none of."""
    text = frame.map(
        lambda v: ("" if math.isnan(v) else f"{v:.3f}") if isinstance(v, float) else str(v)
    )
    print(f"\n{title}\n{text.to_string(index=False)}", flush=True)


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = options(__doc__)
    made.add_argument("--protocol", default="fedgh")
    made.add_argument("--partition", default="pra:0.1")
    made.add_argument(
        "--steerings",
        default="null-head:rounds=1",
        help="by semicolons; + joins several; VICTIM: the first client of the attacked round",
    )
    made.add_argument("--attacks", default="shadow@public-init;linear@strong")
    made.add_argument("--seeds", default="1,2,3")
    made.add_argument("--trained", type=int, default=3, help="rounds of training")
    made.add_argument("--round", type=int, default=1, help="attacked")
    made.add_argument("--targets", type=int, default=40, help="images for each seed")
    made.add_argument(
        "--eval", action="append", default=[], metavar="KEY=VALUE", help="of the attacks"
    )
    made.add_argument("--data", metavar="FILE.npz", help="images in place of digits")
    made.add_argument("--part", choices=PARTS, default="report", help="which of them")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    made.add_argument("--out", type=Path, default=Path("runs/active"))
    return made


def main() -> None:
    """Train the pairs, and print what was lost, gained and noticed."""
    asked = parser().parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    honest = tuple(trained(None, seed, asked) for seed in seeds)
    for steering in asked.steerings.split(";"):
        pair = HonestTwins(tuple(trained(steering, seed, asked) for seed in seeds), honest)
        print(f"\n{asked.protocol}: {pair.active} ({steering})")
        show("Accuracy", pair.learning())
        for how in filter(None, asked.attacks.split(";")):
            found = pair.leakage(partial(leaked, how=how, asked=asked))
            show(f"Leakage: {how}, round {asked.round}", found)
        seen = pair.detection()
        if len(seen):
            show("Detectors", seen)
        else:
            print("\nDetectors: nothing was steered in the rounds that were trained")


if __name__ == "__main__":
    main()
