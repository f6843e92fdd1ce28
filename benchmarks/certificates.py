"""Are recovered prototypes that have a certificate right, and do noise and wrong weights get none?

Trains FedRE, works its uploads apart with `disentangle`, and counts the certificates that are right
(relative error of at most 0.1). Usage:

    python benchmarks/certificates.py [--seeds 4,5,6,7,8,9,10,11] [--rounds 6,14]
        [--solvers aligned] [--cases clean,noise:0.1,noise:1,slight:0.3,nothing,wrong]
        [--dataset DATA] [--out FOLDER]

Clients of `pra:0.1` with cnn4, 20 rounds of training; `--rounds` are the latest ones observed. The
uploads or encodings are changed after training, which the attack is not told: `noise:S` adds noise
of S times the uploads' spread over rounds, `nothing` puts noise of their spread in the place of
uploads, `slight:S` changes each weight by S of itself, `wrong` gives each upload the encoding of
the next round. The thresholds were chosen on seeds 0 and 1, which are refused. The bound is Clopper
and Pearson's one-sided 95 %, with prototypes as units.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from experiments import attacking, federation, federation_options, seeds_of
from scipy.special import betaincinv  # type: ignore[import-untyped]

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.outcomes import CERTIFIED_WITHIN
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.runs.run import Run

TUNED_SEEDS = (0, 1)
"""Seeds on which the thresholds were chosen."""


def changed(observation: Observation, case: str, seed: int) -> Observation:
    """The observation with other uploads or other encodings, see the module's words."""
    kind, _, level = case.partition(":")
    if kind == "clean":
        return observation
    rng = stream(seed, f"tamper {case}")
    by_client: dict[int, list[Upload]] = {}
    for upload in sorted(observation.uploads, key=lambda one: one.round):
        if any(isinstance(a, EntangledRep) for a in upload.artifacts):
            by_client.setdefault(upload.client, []).append(upload)
    made: dict[tuple[int, int], Upload] = {}
    for uploads in by_client.values():
        sent = [next(a for a in u.artifacts if isinstance(a, EntangledRep)) for u in uploads]
        reps = torch.stack([one.rep for one in sent])
        spread = (reps - reps.mean(0)).square().mean().sqrt()
        for place, (upload, one) in enumerate(zip(uploads, sent, strict=True)):
            drawn = torch.randn(one.rep.shape, generator=rng)
            rep, encoding = one.rep, one.encoding
            if kind == "noise":
                rep = rep + float(level) * spread * drawn
            elif kind == "nothing":
                rep = reps.mean(0) + spread * drawn
            elif kind == "slight":
                factor = 1 + float(level) * torch.randn(encoding.shape, generator=rng)
                encoding = encoding * factor.clamp(min=0.05)
                encoding = encoding / encoding.sum()
            elif kind == "wrong":
                encoding = sent[(place + 1) % len(sent)].encoding
            else:
                raise SystemExit(f"unknown case {case}")
            other = EntangledRep(rep, encoding)
            kept = tuple(other if a is one else a for a in upload.artifacts)
            made[upload.client, upload.round] = replace(upload, artifacts=kept)

    def of(uploads: Sequence[Upload]) -> tuple[Upload, ...]:
        return tuple(made.get((one.client, one.round), one) for one in uploads)

    return replace(observation, targets=of(observation.targets), uploads=of(observation.uploads))


def rows_of(run: Run, solver: str, rounds: int, case: str) -> pd.DataFrame:
    """Scores of single prototypes."""
    how = {"name": "disentangle", "solver": solver, "rounds": rounds}
    trial = prepare_attack(run, attacking({"attack": how, "threat": "strong"}))
    seen = changed(trial.observation, case, run.settings.train.seed)
    found = trial.settings.attack(seen, Context(trial.attack_seed))
    return trial.score(found).rows


def line(name: str, rows: pd.DataFrame) -> str:
    """One printed row."""
    given, right = rows["certified"], rows["relative_error"] <= CERTIFIED_WITHIN
    count, good = int(given.sum()), int((given & right).sum())
    bound = betaincinv(good, count - good + 1, 0.05) if good else 0.0
    return (
        f"{name:<28} n {len(rows):>3}, right {right.mean():.2f}, certified {count:>3}, of these "
        f"right {good:>3}" + (f" ({good / count:.3f}, at least {bound:.3f})" if count else "")
    )


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = federation_options(
        __doc__, per_class=100, trained=20, seeds="4,5,6,7,8,9,10,11", out=Path("runs/certificates")
    )
    parser.add_argument("--rounds", default="6,14", help="latest rounds observed")
    parser.add_argument("--solvers", default="aligned")
    parser.add_argument("--cases", default="clean,noise:0.1,noise:1,slight:0.3,nothing,wrong")
    return parser


def main() -> None:
    """Train, attack, and print a row for each solver, case and number of rounds."""
    asked = parser().parse_args()
    seeds = seeds_of(parser(), asked, TUNED_SEEDS)
    if not asked.dataset.startswith("npz:"):
        asked.per_class = None
    torch.set_num_threads(1)
    runs = [federation("fedre", seed, asked, record={"keep_every": 1}) for seed in seeds]
    for solver in asked.solvers.split(","):
        for case in asked.cases.split(","):
            for rounds in (int(one) for one in asked.rounds.split(",")):
                rows = pd.concat([rows_of(run, solver, rounds, case) for run in runs])
                print(line(f"{solver}, {case}, {rounds} rounds", rows), flush=True)


if __name__ == "__main__":
    main()
