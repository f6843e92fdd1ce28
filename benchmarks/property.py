"""What do uploads tell about a client's images as a whole: a large class, dark images?

Trains each protocol and asks `--target property` of its first round, by rehearsals from the known
start, or from random weights (`--start random`, under `no-extractor`). Usage:

    python benchmarks/property.py [--protocols fedgh,fedavg] [--dataset DATA] [--per-class N]
        [--seeds 11,12,13] [--start random] [--noise] [--out FOLDER]

Clients of `pra:0.1` with cnn4. The AUC is over pairs of clients of one seed, with the property and
without it; its floor is the best rule that reads labels alone. Means over seeds are weighted by
pairs, with 95 % intervals, a seed as one unit. With --noise every number of the targets is
replaced by noise of its mean and spread over clients. What the attack learns from, and how, was
chosen on seeds 100 to 109 of the built-in digits, which are refused.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from experiments import attacked, attacking, federation, federation_options, seeds_of

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.types import Upload
from fedre_privacy.eval import Card
from fedre_privacy.eval.intervals import weighted_estimates
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.runs.run import Run

PROTOCOLS = ("fedgh", "fedre", "fd", "lg-fedavg", "fedral", "fedavg", "fedkd")
TUNED_SEEDS = range(100, 110)
GAMES = ("classes", "images")


def noised(uploads: Sequence[Upload], seed: int) -> tuple[Upload, ...]:
    """Uploads with noise in place of what is neither label nor count."""
    rng, made = torch.Generator().manual_seed(seed), []
    for upload in uploads:
        artifacts = []
        for artifact in upload.artifacts:
            told = {"labels", "encoding", "values"}
            artifacts.append(
                artifact.from_tensors(
                    {
                        name: one
                        if name in told
                        else one.mean()
                        + one.std().nan_to_num(0) * torch.randn(one.shape, generator=rng)
                        for name, one in artifact.tensors().items()
                    }
                )
            )
        made.append(dataclasses.replace(upload, artifacts=tuple(artifacts)))
    return tuple(made)


def card_of(run: Run, asked: Any, seed: int) -> Card:
    """The scores of the attack on a run's first round."""
    values = {
        "attack": {"name": "property", "start": asked.start},
        "target": "property",
        "threat": "public-init" if asked.start == "known" else "no-extractor",
        "eval": {"round": asked.round},
    }
    if not asked.noise:
        return attacked(run, values).card
    settings = attacking(values)
    trial = prepare_attack(run, settings)
    seen = dataclasses.replace(
        trial.observation, targets=noised(trial.observation.targets, seed), uploads=()
    )
    return trial.score(settings.attack(seen, Context(trial.attack_seed)))


def line(name: str, game: str, cards: Sequence[Card]) -> str:
    """One printed row of all seeds."""
    found = [m for card in cards if (m := card.find(f"property_auc_{game}")) is not None]
    rows = [card.rows[card.rows["property"].str.contains("class") == (game == "classes")]
            for card in cards]  # fmt: skip
    pairs = [
        sum(p["has"].sum() * (~p["has"]).sum() for _, p in part.groupby("property"))
        for part in rows
    ]
    values = torch.tensor([[m.value, m.floor, m.over] for m in found], dtype=torch.float64)
    weights = torch.tensor([float(n) for n in pairs if n], dtype=torch.float64)
    mean = weighted_estimates(values, weights[:, None].expand(values.shape))
    low, high = mean.interval()
    leaking = sum(card.verdict.word == "leaks" for card in cards)
    n = sum(m.n for m in found)
    return (
        f"{name:<12} {game:<8} n {n:>4}, {int(weights.sum()):>5} pairs: AUC "
        f"{float(mean.mean[0]):.3f} [{float(low[0]):.3f}, {float(high[0]):.3f}], labels "
        f"{float(mean.mean[1]):.3f}, over {float(mean.mean[2]):+.3f} "
        f"[{float(low[2]):+.3f}, {float(high[2]):+.3f}]; leaks in {leaking} of {len(cards)}"
    )


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = federation_options(
        __doc__, trained=1, round=1, seeds="11,12,13,14,15,16", out=Path("runs/property")
    )
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    parser.add_argument("--alpha", type=float, default=0.1, help="of the partition")
    parser.add_argument("--start", default="known", choices=("known", "random"))
    parser.add_argument("--noise", action="store_true", help="in place of the uploads")
    return parser


def main() -> None:
    """Train, attack, and print a row for each protocol and kind of property."""
    asked = parser().parse_args()
    seeds = seeds_of(parser(), asked, TUNED_SEEDS)
    asked.trained = max(asked.trained, asked.round)
    torch.set_num_threads(1)
    more = {"record": {"keep_first": True}, "partition": {"alpha": asked.alpha}}
    for protocol in asked.protocols.split(","):
        cards = [card_of(federation(protocol, k, asked, **more), asked, k) for k in seeds]
        for game in GAMES:
            print(line(protocol, game, cards), flush=True)


if __name__ == "__main__":
    main()
