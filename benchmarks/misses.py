"""How often does the deep image prior miss, what marks a miss without truth, and what mends it?

Attacks single representations of recorded runs from two starts each. A target is missed where its
answer stays below 12 dB. Printed are the first start alone, the start with the better match, the
mean of both, and the mean for the quarter of targets whose first match was worst with the first
start for the others (a quarter more steps in all); then how well what an attacker sees tells the
first start's misses from its other answers (AUC; 0.5 is chance).

The marks were chosen on half of the images of CIFAR-10 and on runs of training seed 0; the other
half and other seeds are for reports only, and this program never mixes them: an image belongs to a
half by the parity of the sum of its pixels (0-255). On other data sets nothing was chosen.

    python benchmarks/misses.py RUN [RUN ...] [--half report] [--out rows.csv]
    python benchmarks/misses.py --rows rows.csv [more.csv ...]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from experiments import attacking
from tools import options
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.objectives import total_variation
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.inversion.gradient_descent import spread_of
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Mixture, Observation, Truth, Upload
from fedre_privacy.eval import PublicImages, evaluate
from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.eval.membership import auc
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.images import TARGET, ImageTrial
from fedre_privacy.runs.run import Run

MISSED = 12.0
"""PSNR (dB) below which an answer counts as a miss."""
TUNING_SEED = 0
"""Of training: runs of this seed are for choosing settings, all others for reports."""
HALVES = ("tuning", "report")
UNSEEN = ("digits", "photos")
"""Data sets on which nothing was chosen: all their images are for reports."""
STARTS = (0, 1000)
"""Added to a run's seed for the searches of its first and second start."""
ANSWERS = ("first start", "better match", "mean of both", "mean if in doubt")
COST = {"first start": 1.0, "better match": 2.0, "mean of both": 2.0, "mean if in doubt": 1.25}
"""Steps, in those of one start."""
MARKS = ("match", "match halfway", "total variation", "spread")
"""What an attacker sees of an answer that could mark a miss: higher, more likely."""


def in_half(images: Tensor, half: str) -> Tensor:
    """Which images (n, C, H, W) in [0, 1] belong to a half, (n,) bool."""
    sums = (images * 255).round().long().flatten(1).sum(1)
    return sums % 2 == HALVES.index(half)


@dataclass(frozen=True)
class Case:
    """Targets of one run that belong to one half."""

    observation: Observation
    truth: Truth
    public: PublicImages


def case_of(run: Run, count: int, half: str, most: int, threat: str | None = None) -> Case:
    """Draw `count` single representations of a run and keep the first `most` of a half.

    Args:
        threat: the attacker; None: the one of the paper.

    Raises:
        ConfigError: the run's seed belongs to the other half, or no image is left.
    """
    seed = run.settings.train.seed
    if (seed == TUNING_SEED) != (half == "tuning"):
        raise ConfigError(f"{run.name} was trained with seed {seed}, not one of half '{half}'.")
    values: dict[str, Any] = {
        "target": "representations",
        "eval": {"targets": count, "seed": seed},
        **({"threat": threat, "attack": {"name": "linear"}} if threat else {}),
    }
    trial = prepare_attack(run, attacking(values))
    assert isinstance(trial, ImageTrial)
    return keep(trial, run.settings.data.name, half, most)


def keep(trial: ImageTrial, dataset: str, half: str, most: int) -> Case:
    """Leave in a trial the targets whose image belongs to a half of a data set."""
    group = trial.groups[TARGET]
    truth, samples = group.truth, []
    for row in range(len(group)):
        samples.append(int(truth.mixture.support(row)[0]))
    fits = in_half(truth.images[samples], half)
    if dataset in UNSEEN:
        fits = torch.full_like(fits, half == "report")
    wanted = fits.nonzero().squeeze(1)[:most]
    if not len(wanted):
        raise ConfigError(f"No target of {trial.run.name} belongs to half '{half}'.")
    return chosen_of(trial, wanted)


def chosen_of(trial: ImageTrial, wanted: Tensor) -> Case:
    """Leave in a trial of single representations the targets (n,) that are wanted, ascending."""
    group = trial.groups[TARGET]
    truth = group.truth
    samples = torch.tensor([int(truth.mixture.support(row)[0]) for row in wanted.tolist()])
    uploads, first = [], 0
    for upload in group.uploads:
        (artifact,) = upload.artifacts
        assert isinstance(artifact, Representations)
        count = len(artifact.reps)
        own = wanted[(wanted >= first) & (wanted < first + count)] - first
        first += count
        if len(own):
            part = Representations(artifact.reps[own], artifact.labels[own])
            uploads.append(Upload(upload.client, upload.round, (part,)))
    mixture = Mixture(torch.arange(len(wanted)), samples, torch.ones(len(wanted)), len(wanted))
    return Case(
        replace(trial.observation, targets=tuple(uploads)),
        replace(
            truth,
            mixture=mixture,
            target_clients=truth.target_clients[wanted],
            target_labels=truth.target_labels[wanted],
        ),
        trial.public,
    )


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's score, ends in [0, 1]."""
    z, share = 1.96, hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def answers_of(case: Case, seed: int) -> Reconstruction:
    """Attack the targets of a case with default settings from one start."""
    found = DeepImagePrior()(case.observation, Context(seed=seed))
    assert isinstance(found, Reconstruction)
    return found


def doubtful(match: Tensor) -> Tensor:
    """The quarter of targets whose match is worst, (n,) bool."""
    worst = match.nan_to_num(math.inf).argsort(descending=True)[: len(match) // 4]
    return torch.zeros(len(match), dtype=torch.bool).index_fill(0, worst, True)


def combined(one: Reconstruction, other: Reconstruction) -> dict[str, Tensor]:
    """Images (n, C, H, W) of every kind of answer from two starts."""

    def where(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(mask[:, None, None, None], yes, no)

    mean = (one.images + other.images) / 2
    made = (
        one.images,
        where(other.fit < one.fit, other.images, one.images),
        mean,
        where(doubtful(one.fit), mean, one.images),
    )
    return dict(zip(ANSWERS, made, strict=True))


def scored(case: Case, one: Reconstruction, other: Reconstruction, seed: int) -> pd.DataFrame:
    """Scores of every answer to every target beside their floors, with the marks of the first."""
    chosen = {name: metrics.get(name)() for name in ("psnr", "ssim")}
    marks = {
        "match": one.fit,
        "match halfway": one.trace[len(one.trace_steps) // 2],
        "total variation": total_variation(one.images),
        "spread": spread_of(torch.stack([one.images, other.images], 1)),
    }
    tables = []
    for name, images in combined(one, other).items():
        scores = evaluate(
            replace(one, images=images), case.truth, case.public, metrics=chosen, seed=seed
        )
        chance = scores.get("hit1").floor
        tables.append(scores.rows.assign(answer=name, chance=chance))
    return pd.concat(tables, ignore_index=True).assign(
        **{name: values.double().numpy().tolist() * len(tables) for name, values in marks.items()}
    )


def told(name: str, rows: pd.DataFrame) -> str:
    """One line of the table."""
    n, missed = len(rows), int((rows["psnr"] < MISSED).sum())
    low, high = wilson(missed, n)
    return (
        f"{name:<18}{COST[name]:>6.2f}{n:>5}"
        f"{rows['psnr'].mean():>8.2f} ({rows['psnr_floor'].mean():.2f})"
        f"{rows['ssim'].mean():>8.3f} ({rows['ssim_floor'].mean():.3f})"
        f"{rows['hit1'].mean():>7.0%} ({rows['chance'].mean():.1%})"
        f"{missed:>6} = {missed / n:.1%} [{low:.1%}, {high:.1%}]"
    )


def marks_told(rows: pd.DataFrame) -> str:
    """How well each mark tells the first start's misses from its other answers."""
    psnr = torch.tensor(rows["psnr"].to_numpy())
    lines = []
    for level in (MISSED, MISSED + 1, MISSED + 2):
        missed = psnr < level
        areas = [f"{name} {auc(torch.tensor(rows[name].to_numpy()), missed):.2f}" for name in MARKS]
        lines.append(
            f"AUC, {int(missed.sum())} of {len(rows)} below {level:.0f} dB: " + ", ".join(areas)
        )
    return "\n".join(lines)


def table(rows: pd.DataFrame) -> str:
    """Everything that is printed of the scores of one or more runs."""
    parts = {name: rows[rows["answer"] == name].reset_index(drop=True) for name in ANSWERS}
    head = (
        f"{'answer':<18}{'steps':>6}{'n':>5}{'PSNR (floor)':>16}{'SSIM (floor)':>16}"
        f"{'found (chance)':>15}"
        f"{f'below {MISSED:.0f} dB':>26}"
    )
    first = parts[ANSWERS[0]]
    lines = [head, *(told(name, part) for name, part in parts.items()), marks_told(first)]
    lines += [f"{name} less {ANSWERS[0]}: {paired(first, parts[name])}" for name in ANSWERS[1:]]
    return "\n".join(lines)


def paired(before: pd.DataFrame, after: pd.DataFrame) -> str:
    """Mean differences with 95 % intervals over clients of runs, then targets of each."""
    names = ("psnr", "ssim", "hit1")
    gains = torch.tensor(after[list(names)].to_numpy() - before[list(names)].to_numpy())
    missed = [torch.tensor(rows["psnr"].to_numpy() < MISSED) for rows in (after, before)]
    gains = torch.cat([gains, (missed[0].double() - missed[1].double())[:, None]], dim=1)
    codes = (before["run"] + " " + before["client"].astype(str)).astype("category").cat.codes
    low, high = cluster_means(gains, torch.tensor(codes.to_numpy()).long()).interval()
    parts = [
        f"{name} {mean:+.3f} [{a:+.3f}, {b:+.3f}]"
        for name, mean, a, b in zip(
            (*names, "misses"), gains.mean(0).tolist(), low.tolist(), high.tolist(), strict=True
        )
    ]
    return ", ".join(parts)


def case_options(text: str | None, targets: int) -> argparse.ArgumentParser:
    """Options that say which targets of which runs are attacked, so many of each by default."""
    made = options(text)
    made.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    made.add_argument("--half", choices=HALVES, default="report")
    made.add_argument("--drawn", type=int, default=80, help="targets drawn of each run")
    made.add_argument("--targets", type=int, default=targets, help="kept of each run, at most")
    return made


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = case_options(__doc__, 40)
    made.add_argument("--rows", nargs="+", type=Path, default=[], help="scores written before")
    made.add_argument("--out", type=Path, help="CSV file for the scores of single targets")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Attack every run from two starts and print one table."""
    chosen = parser().parse_args(arguments)
    tables = [pd.read_csv(path) for path in chosen.rows]
    for folder in chosen.runs:
        run = Run(folder)
        seed = run.settings.train.seed
        case = case_of(run, chosen.drawn, chosen.half, chosen.targets)
        started = time.process_time()
        one, other = (answers_of(case, seed + start) for start in STARTS)
        seconds = (time.process_time() - started) / len(STARTS)
        tables.append(scored(case, one, other, seed).assign(run=run.name))
        if chosen.out:
            pd.concat(tables, ignore_index=True).to_csv(chosen.out, index=False)
        print(f"{run.name}: {seconds:.0f} s of processor time a start", flush=True)
        print(table(tables[-1]), flush=True)
    if not tables:
        parser().error("give runs, or --rows with scores written before")
    if chosen.rows or len(tables) > 1:
        print("all runs")
        print(table(pd.concat(tables, ignore_index=True)))


if __name__ == "__main__":
    main()
