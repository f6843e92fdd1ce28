"""What uploaded models tell about membership: every score of `loss-membership`, seed by seed.

Federations are trained on small parts of a data set, each with a seed of its own for the split,
the training and the candidates. Scores are chosen on `TUNING` seeds (which decide ``score=auto``)
and reported on `REPORT` seeds; no seed is in both. Printed are the AUC within client and class
with 95 % intervals, over all candidates of all seeds, beside the model before the upload and the
rule that sees the image alone.

    python benchmarks/membership_models.py --data FILE.npz --seeds report --protocols fedavg,fedsgd
    python benchmarks/membership_models.py --data FILE.npz --seeds tuning --out rows.csv
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import tools
import torch
from experiments import attacking, training
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.loss_membership import DIFFERENCE, LOSS, REFERENCE, LossMembership
from fedre_privacy.eval.measures import Interval
from fedre_privacy.eval.membership import evaluate_membership
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.membership import MembershipTrial

TUNING = (101, 102)
REPORT = (0, 1)
SEEDS = {"tuning": TUNING, "report": REPORT}
SCORES = (LOSS, DIFFERENCE, REFERENCE)
COLUMNS = ("setting", "score", "seeds", "n", "auc", "auc_ci", "before", "above_before_ci",
           "image alone", "above_image_ci", "tpr_at_fpr_0.01")  # fmt: skip


def trials(values: dict[str, Any], seeds: Iterable[int], runs: Path) -> list[MembershipTrial]:
    """Train one federation per seed, or read it back, and draw its candidates."""
    found = []
    for seed in seeds:
        run = training({**values, "train": {**values["train"], "seed": seed}}, runs)
        how = {
            "target": "membership",
            "attack": {"name": "loss-membership"},
            "threat": "fedre-paper",
            "eval": {"seed": seed},
        }
        found.append(prepare_attack(run, attacking(how)))
    return found


def together(parts: Iterable[Tensor]) -> Tensor:
    """One tensor of those of all seeds."""
    return torch.cat(list(parts))


def measure(name: str, played: list[MembershipTrial], score: str) -> dict[str, object]:
    """One row: a score over the candidates of all seeds, clients of different seeds apart."""
    attack = LossMembership(score=score)
    found = [attack(trial.observation, Context()).scores for trial in played]
    owners = [trial.candidates.clients + 1000 * place for place, trial in enumerate(played)]
    card = evaluate_membership(
        together(found),
        together(trial.members for trial in played),
        together(owners),
        together(trial.candidates.labels for trial in played),
        baseline=together(trial.baseline for trial in played),
        floor=together(trial.floor for trial in played),
    )
    image, before, rate = (card.get(k) for k in ("auc", "auc_over_model", "tpr_at_fpr_0.01"))

    def around(interval: Interval | None) -> str:
        return "-" if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]"

    return {
        "setting": name,
        "score": score,
        "seeds": " ".join(str(trial.settings.evaluation.seed) for trial in played),
        "n": card.n,
        "auc": image.number(image.value),
        "auc_ci": around(image.interval),
        "before": before.number(before.floor),
        "above_before_ci": around(before.over_interval),
        "image alone": image.number(image.floor),
        "above_image_ci": around(image.over_interval),
        "tpr_at_fpr_0.01": rate.number(rate.value),
    }


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = tools.options(__doc__)
    made.add_argument("--data", type=Path, required=True, help="a .npz file of images")
    made.add_argument("--seeds", choices=tuple(SEEDS), default="report")
    made.add_argument("--protocols", default="fedavg", help="comma list")
    made.add_argument("--partitions", default="iid", help="comma list, for example iid,pra:0.1")
    made.add_argument("--per-class", type=int, default=60)
    made.add_argument("--clients", type=int, default=10)
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--epochs", type=int, default=1)
    made.add_argument("--batch", type=int, default=8)
    made.add_argument("--runs", type=Path, default=Path("runs"))
    made.add_argument("--out", type=Path)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, attack, print."""
    options = parser().parse_args(arguments)
    rows = []
    for protocol in options.protocols.split(","):
        for partition in options.partitions.split(","):
            started = time.process_time()
            scheme, _, alpha = partition.partition(":")
            values = {
                "data": {"name": "npz", "path": str(options.data), "per_class": options.per_class},
                "partition": {"name": scheme, **({"alpha": float(alpha)} if alpha else {})},
                "model": {"name": "cnn4"},
                "protocol": {"name": protocol},
                "train": {
                    "clients": options.clients,
                    "rounds": options.rounds,
                    "epochs": options.epochs,
                    "batch_size": options.batch,
                },
            }
            played = trials(values, SEEDS[options.seeds], options.runs)
            name = f"{protocol}, {partition}, {options.rounds} rounds, batch {options.batch}"
            rows += [measure(name, played, score) for score in SCORES]
            print(pd.DataFrame(rows[-3:], columns=COLUMNS).to_string(index=False), flush=True)
            print(f"processor time {time.process_time() - started:.0f} s\n", flush=True)
    if options.out:
        pd.DataFrame(rows).to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
