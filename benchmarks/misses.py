"""How often does the deep image prior miss, what marks a miss without truth, and what mends it?

Attacks single representations of recorded runs. A target is missed where its answer stays below 12
dB. Settings were chosen on half of the images and on runs of training seed 0; the other half and
other seeds are for reports only, and this program never mixes them: an image belongs to a half by
the parity of the sum of its pixels (0-255).

    python benchmarks/misses.py RUN [RUN ...] [--half report] [--variants NAME,NAME]
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.parts.objectives import chroma, total_variation
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.types import (
    Mixture,
    Observation,
    Reconstruction,
    Representations,
    Truth,
    Upload,
)
from fedre_privacy.eval import PublicImages, evaluate
from fedre_privacy.eval.bootstrap import cluster_means, interval
from fedre_privacy.eval.membership import auc
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.pipeline.attack import prepare_attack
from fedre_privacy.pipeline.questions.images import TARGET, ImageGame
from fedre_privacy.pipeline.runs import Run
from fedre_privacy.pipeline.settings import resolve_attack

MISSED = 12.0
"""PSNR (dB) below which an answer counts as a miss."""
TUNING_SEED = 0
"""Of training: runs of this seed are for choosing settings, all others for reports."""
HALVES = ("tuning", "report")
VARIANTS = {
    "without chroma": DeepImagePrior(chroma=0),
    "default": DeepImagePrior(),
    "two starts": DeepImagePrior(chroma=0, restarts=2),
}
MARKS = ("match", "match halfway", "total variation", "chroma", "disagreement")
"""What an attacker sees of an answer that could mark a miss."""


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


def case_of(run: Run, count: int, half: str, most: int) -> Case:
    """Draw `count` single representations of a run and keep the first `most` of a half.

    Raises:
        ConfigError: the run's seed belongs to the other half, or no image is left.
    """
    seed = run.settings.train.seed
    if (seed == TUNING_SEED) != (half == "tuning"):
        raise ConfigError(f"{run.name} was trained with seed {seed}, not one of half '{half}'.")
    problems: list[str] = []
    values = {"target": "representations", "eval": {"targets": count, "seed": seed}}
    settings = resolve_attack(values, {}, problems)
    if settings is None or problems:
        raise ConfigError(*problems)
    game = prepare_attack(run, settings)
    assert isinstance(game, ImageGame)
    return keep(game, half, most)


def keep(game: ImageGame, half: str, most: int) -> Case:
    """Leave in a game the targets whose image belongs to a half."""
    group = game.groups[TARGET]
    truth, samples = group.truth, []
    for row in range(len(group)):
        samples.append(int(truth.mixture.support(row)[0]))
    wanted = in_half(truth.images[samples], half).nonzero().squeeze(1)[:most]
    if not len(wanted):
        raise ConfigError(f"No target of {game.run.name} belongs to half '{half}'.")
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
    chosen = torch.tensor(samples)[wanted]
    mixture = Mixture(torch.arange(len(wanted)), chosen, torch.ones(len(wanted)), len(wanted))
    return Case(
        replace(game.observation, targets=tuple(uploads)),
        replace(
            truth,
            mixture=mixture,
            target_clients=truth.target_clients[wanted],
            target_labels=truth.target_labels[wanted],
        ),
        game.public,
    )


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's score, ends in [0, 1]."""
    z, share = 1.96, hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def answers_of(case: Case, attack: DeepImagePrior, seed: int) -> tuple[Reconstruction, float]:
    """Attack the targets of a case; the answers and the processor seconds they took."""
    started = time.process_time()
    found = attack(case.observation, Context(seed=seed))
    assert isinstance(found, Reconstruction)
    return found, time.process_time() - started


def scored(case: Case, found: Reconstruction, seed: int) -> pd.DataFrame:
    """Scores of single targets with what could mark a miss without truth, beside their floors."""
    chosen = {name: metrics.get(name)() for name in ("psnr", "ssim")}
    rows = evaluate(found, case.truth, case.public, metrics=chosen, seed=seed).rows
    middle = len(found.trace_steps) // 2
    marks = {
        "match": found.fit,
        "match halfway": found.trace[middle],
        "total variation": total_variation(found.images),
        "chroma": chroma(found.images),
    }
    return rows.assign(**{name: values.double().numpy() for name, values in marks.items()})


def told(name: str, rows: pd.DataFrame, seconds: float) -> str:
    """One line of the table."""
    n, missed = len(rows), int((rows["psnr"] < MISSED).sum())
    low, high = wilson(missed, n)
    return (
        f"{name:<22}{n:>5}{rows['psnr'].mean():>8.2f} ({rows['psnr_floor'].mean():.2f})"
        f"{rows['ssim'].mean():>8.3f} ({rows['ssim_floor'].mean():.3f})"
        f"{rows['hit1'].mean():>7.0%}{missed:>6} = {missed / n:.1%} [{low:.1%}, {high:.1%}]"
        f"{seconds / n:>9.2f} s"
    )


def marks_told(rows: pd.DataFrame) -> str:
    """How well each mark, higher for a miss, tells misses from others; 0.5 is chance."""
    missed = torch.tensor(rows["psnr"].to_numpy() < MISSED)
    areas = [
        f"{name} {auc(torch.tensor(rows[name].to_numpy()), missed):.2f}"
        for name in MARKS
        if name in rows
    ]
    return f"AUC of {int(missed.sum())} misses among {len(rows)}: " + ", ".join(areas)


def paired(before: pd.DataFrame, after: pd.DataFrame) -> str:
    """Mean differences with 95 % intervals over clients of runs, then targets of each."""
    names = ("psnr", "ssim", "hit1")
    gains = torch.tensor(after[list(names)].to_numpy() - before[list(names)].to_numpy())
    missed = [torch.tensor(rows["psnr"].to_numpy() < MISSED) for rows in (after, before)]
    gains = torch.cat([gains, (missed[0].double() - missed[1].double())[:, None]], dim=1)
    codes = (before["run"] + " " + before["client"].astype(str)).astype("category").cat.codes
    low, high = interval(cluster_means(gains, torch.tensor(codes.to_numpy()).long()))
    parts = [
        f"{name} {mean:+.3f} [{a:+.3f}, {b:+.3f}]"
        for name, mean, a, b in zip(
            (*names, "misses"), gains.mean(0).tolist(), low.tolist(), high.tolist(), strict=True
        )
    ]
    return ", ".join(parts)


def main() -> None:
    """Attack every run with every variant and print one table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    options.add_argument("--half", choices=HALVES, default="report")
    options.add_argument("--drawn", type=int, default=80, help="targets drawn of each run")
    options.add_argument("--targets", type=int, default=40, help="kept of each run, at most")
    options.add_argument("--variants", default="without chroma,default", help="the first: before")
    chosen = options.parse_args()
    names = chosen.variants.split(",")
    if unknown := set(names) - set(VARIANTS):
        options.error(f"no variant {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in names}
    taken = dict.fromkeys(names, 0.0)
    for folder in chosen.runs:
        run = Run(folder)
        seed = run.settings.train.seed
        case = case_of(run, chosen.drawn, chosen.half, chosen.targets)
        first: Tensor | None = None
        for name in names:
            found, seconds = answers_of(case, VARIANTS[name], seed)
            rows = scored(case, found, seed).assign(run=run.name)
            if first is None:
                first = found.images
            else:
                apart = (found.images - first).square().flatten(1).mean(1)
                rows = rows.assign(disagreement=apart.double().numpy())
            tables[name].append(rows)
            taken[name] += seconds
            print(f"{run.name}: {told(name, rows, seconds)}", flush=True)
    whole = {name: pd.concat(tables[name], ignore_index=True) for name in names}
    print(
        f"{'':<22}{'n':>5}{'PSNR (floor)':>16}{'SSIM (floor)':>16}{'found':>7}"
        f"{f'below {MISSED:.0f} dB':>22}{'processor time':>20}"
    )
    for name, rows in whole.items():
        print(told(name, rows, taken[name]))
        print("   " + marks_told(rows))
    for name in names[1:]:
        print(f"{name} less {names[0]}: {paired(whole[names[0]], whole[name])}")


if __name__ == "__main__":
    main()
