"""Does an attack know which of its answers are right, and how sure may it be?

Trains runs, attacks what they upload, and scores the attack's confidence, all seeds together.
Usage:

    python benchmarks/confidence.py [--attacks linear,dip] [--dataset DATA] [--seeds 4,5,6]
        [--protocol fedgh] [--targets 40] [--out FOLDER]

Clients of `pra:0.1` with cnn4, five rounds (logits twelve, every model kept; updates and shadow the
first round). Settings of the calibration (features, penalty, how victims are drawn) were chosen on
seed 0, which is refused. `AUC` is of found against not found, `skill` the Brier skill over saying
the share of all, `ECE` the calibration error in five equally full bins (from 50 targets on), `said`
the mean confidence beside the share found. Coverage is PSNR over the floor of the surest tenth,
quarter and half. Intervals are 95 %, with clients as units.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from experiments import attacked, federation, federation_options, pooled, seeds_of, targets

from fedre_privacy.eval.confidence import AUC, BRIER, CALIBRATION, COVERED, confidence_measures

TUNED_SEED = 0
"""The seed on which the calibration was chosen."""


@dataclass(frozen=True)
class Case:
    """How an attack is played: on which protocol, under which threat model, with which settings."""

    protocol: str
    threat: str
    attack: Mapping[str, Any]
    rounds: int = 5
    every: int = 0


CASES = {
    "linear": Case("fedgh", "strong", {"name": "linear"}),
    "dip": Case("fedgh", "strong", {"name": "dip", "victims": 50}),
    "dip-ranking": Case("fedgh", "strong", {"name": "dip"}),
    "shadow": Case("fedgh", "public-init", {"name": "shadow"}, rounds=1, every=1),
    "logits": Case("fd", "strong", {"name": "logits"}, rounds=12, every=1),
    "update-inversion": Case("fedavg", "fedre-paper", {"name": "update-inversion"}, 1, 1),
    "inverting-gradients": Case("fedsgd", "fedre-paper", {"name": "inverting-gradients"}, 1, 1),
}
"""Attacks by the name they are asked for."""


def rows_of(case: Case, seed: int, asked: Any) -> tuple[pd.DataFrame, str]:
    """Scores of single targets of one seed, and what the confidence is."""
    protocol = asked.protocol or case.protocol
    asked.trained = case.rounds
    found = attacked(
        federation(protocol, seed, asked, record={"keep_every": case.every}),
        {
            "attack": dict(case.attack),
            "threat": case.threat,
            "eval": {"targets": asked.targets, "ceiling": 0},
            "target": asked.target,
        },
    )
    return targets(found), found.card.words["confidence"]


def line(name: str, rows: pd.DataFrame, seed: int = 0) -> str:
    """One printed row of a group of targets of all seeds."""
    if not len(rows):
        return f"  {name:<16} n   0"
    columns = {
        key: torch.tensor(rows[key].to_numpy(dtype=float))
        for key in ("confidence", "hit1", "psnr", "psnr_floor")
    }
    clients = torch.tensor(rows["unit"].to_numpy())
    found = {
        of.key: of
        for of in confidence_measures(
            columns["confidence"],
            columns["hit1"],
            columns["psnr"],
            columns["psnr"] - columns["psnr_floor"],
            clients,
            seed=seed,
        )
    }

    def told(key: str) -> str:
        of = found.get(key)
        if of is None or of.value is None:
            return "-"
        ends = "" if of.interval is None else f" [{of.interval[0]:.2f}, {of.interval[1]:.2f}]"
        return f"{of.value:.2f}{ends}"

    over = float((columns["psnr"] - columns["psnr_floor"]).mean())
    covered = ", ".join(told(of.key) for of in COVERED.values())
    return (
        f"  {name:<16} n {len(rows):>3}, found {columns['hit1'].mean():.2f}, said "
        f"{columns['confidence'].nanmean():.2f}, AUC {told(AUC.key)}, skill {told(BRIER.key)}, "
        f"ECE {told(CALIBRATION.key)}, over the floor {over:+.2f}; surest tenth, quarter, half "
        f"{covered}"
    )


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = federation_options(
        __doc__, per_class=100, seeds="4,5,6", targets=40, out=Path("runs/confidence")
    )
    parser.add_argument("--attacks", default="linear,dip", help=f"of {', '.join(CASES)}")
    parser.add_argument("--protocol", help="in place of the attack's usual one")
    parser.add_argument("--target", default="uploaded")
    return parser


def main() -> None:
    """Train, attack, and print three rows for each attack: all targets, of one image, of more."""
    asked = parser().parse_args()
    seeds = seeds_of(parser(), asked, [TUNED_SEED])
    if not asked.dataset.startswith("npz:"):
        asked.per_class = None
    torch.set_num_threads(1)
    for name in asked.attacks.split(","):
        found = [rows_of(CASES[name], seed, asked) for seed in seeds]
        rows = pooled([part for part, _ in found])
        print(f"{name}, {asked.dataset}, seeds {asked.seeds}: {found[0][1]}", flush=True)
        one = rows["support_size"] == 1
        for group, part in (("all", rows), ("one image", rows[one]), ("more", rows[~one])):
            print(line(group, part), flush=True)


if __name__ == "__main__":
    main()
