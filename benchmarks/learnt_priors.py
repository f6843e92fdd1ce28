"""What is a learnt prior worth when representations are inverted, beside untrained ones?

Attacks single representations of recorded runs in several ways by an attacker who holds the
extractors and auxiliary images, and prints PSNR, SSIM and how many are found, each beside its
floor, the difference to one of the ways (--beside; dip unless told), and the processor seconds
of all targets of a run. A prior that copies would answer with an auxiliary image: `copies` is the
share of answers that are nearer to an auxiliary image than to the truth.

Settings of `diffusion` and `ensemble-kalman` were chosen on half of the images of CIFAR-10 and on
runs of training seed 0; the other half and other seeds are for reports only (see misses.py). With
--aux the attacker's images come from another data set, as many as before and without labels.

    python benchmarks/learnt_priors.py RUN [RUN ...] [--half report] [--out rows.csv]
    python benchmarks/learnt_priors.py --rows rows.csv
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from misses import Case, case_of, case_options
from tools import noise_like
from torch import Tensor

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.config import build_plugin
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.data.base import datasets
from fedre_privacy.eval import evaluate
from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.runs.resolution import require_resolved
from fedre_privacy.runs.run import Run

WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "linear": ("linear", {"victims": 0}),
    "decoder": ("decoder", {}),
    "dip": ("dip", {}),
    "dip, from decoder": ("dip", {"start": "decoder"}),
    "dip, mean of 4": ("dip", {"restarts": 4, "combine": "mean"}),
    "diffusion, linear": ("diffusion", {"updates": 1, "lr": 1e-12}),
    "diffusion, 1 sample": ("diffusion", {"samples": 1}),
    "diffusion": ("diffusion", {}),
    "kalman, 1 step": ("ensemble-kalman", {"steps": 1}),
    "kalman, short": ("ensemble-kalman", {"steps": 1, "views": 4, "members": 500}),
    "kalman, 1,000": ("ensemble-kalman", {"members": 1000}),
    "kalman, 3,000": ("ensemble-kalman", {"members": 3000, "views": 18}),
    "kalman, 5 steps": ("ensemble-kalman", {"members": 3000, "views": 18, "steps": 5}),
    "ensemble-kalman": ("ensemble-kalman", {}),
    "mean": (
        "mean",
        {
            "first": {"name": "ensemble-kalman", "members": 1500},
            "second": {"name": "diffusion", "samples": 2},
        },
    ),
}
"""Names of the rows: attacks and settings. "diffusion, linear" has the linear denoiser alone."""

CONTROLS = ("noise", "permuted")


def with_aux(case: Case, given: str, seed: int) -> Case:
    """The case of an attacker whose images are drawn from another data set, D or D:PATH."""
    name, _, path = given.partition(":")
    before = case.observation.aux
    assert before is not None
    made = datasets.get(name)(size=before.shape[-1], **({"path": path} if path else {}))
    images = made.load().images
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    aux = images[chosen[: len(before)]].float() / 255
    if aux.shape[1] == 1:  # grey images, as colour images whose channels are equal
        aux = aux.expand(-1, before.shape[1], -1, -1).contiguous()
    if aux.shape[1:] != before.shape[1:]:
        raise ConfigError(f"Images of {name} are {tuple(aux.shape[1:])}, not those of the run.")
    return replace(case, observation=replace(case.observation, aux=aux, aux_labels=None))


def controlled(case: Case, control: str, seed: int) -> Case:
    """The case with uploads that say nothing of their images: noise of the uploads' mean and
    spread in every dimension, or every upload in the place of another target's.
    """
    generator = torch.Generator().manual_seed(seed)
    uploads = case.observation.targets
    parts = [cast(Representations, upload.artifacts[0]) for upload in uploads]
    reps = torch.cat([part.reps for part in parts])
    if control == "permuted":
        changed = reps.roll(1 + int(torch.randint(len(reps) - 1, (), generator=generator)), 0)
    else:
        changed = noise_like(reps, generator)
    pieces = changed.split([len(part.reps) for part in parts])
    targets = tuple(
        replace(upload, artifacts=(Representations(piece, part.labels),))
        for upload, piece, part in zip(uploads, pieces, parts, strict=True)
    )
    return replace(case, observation=replace(case.observation, targets=targets))


def nearer_to_aux(images: Tensor, case: Case) -> Tensor:
    """Answers (n, C, H, W) that are nearer to an auxiliary image than to the truth, (n,) bool."""
    aux = case.observation.aux
    assert aux is not None
    truth = case.truth.images[case.truth.mixture.sample]
    apart = torch.cdist(images.flatten(1), aux.flatten(1)).min(1).values
    return apart < (images - truth).flatten(1).norm(dim=1)


def scored(case: Case, way: str, seed: int) -> tuple[pd.DataFrame, float]:
    """Scores of one way beside their floors, and its processor seconds."""
    name, settings = WAYS[way]
    problems: list[str] = []
    started = time.process_time()
    attack = require_resolved(
        build_plugin(attacks, {"name": name, **settings}, at="attack", problems=problems), problems
    )
    found = attack(case.observation, Context(seed=seed))
    seconds = time.process_time() - started
    assert isinstance(found, Reconstruction)
    chosen = {name: metrics.get(name)() for name in ("psnr", "ssim")}
    scores = evaluate(
        replace(found, confidence=torch.zeros(0), calibrated=""),
        case.truth,
        case.public,
        metrics=chosen,
        seed=seed,
    )
    rows = scores.rows.assign(
        way=way,
        chance=scores.get("hit1").floor,
        copy=nearer_to_aux(found.images, case).numpy(),
        seconds=seconds,
    )
    return rows, seconds


def told(way: str, rows: pd.DataFrame, before: pd.DataFrame | None) -> str:
    """One line of the table; `before` are the rows that it is compared with."""
    out = (
        f"{way:<20}{len(rows):>4}"
        f"{rows['psnr'].mean():>8.2f} ({rows['psnr_floor'].mean():.2f})"
        f"{rows['ssim'].mean():>8.3f} ({rows['ssim_floor'].mean():.3f})"
        f"{rows['hit1'].mean():>7.0%} ({rows['chance'].mean():.1%})"
        f"{rows['copy'].mean():>7.0%}{rows.groupby('run')['seconds'].first().mean():>8.0f}"
    )
    if before is None or len(before) != len(rows):
        return out
    names = ["psnr", "ssim"]
    gains = torch.tensor(rows[names].to_numpy() - before[names].to_numpy())
    codes = (rows["run"] + " " + rows["client"].astype(str)).astype("category").cat.codes
    low, high = cluster_means(gains, torch.tensor(codes.to_numpy()).long()).interval()
    told = [
        f"{float(mean):+.2f} [{float(a):+.2f}, {float(b):+.2f}]"
        for mean, a, b in zip(gains.mean(0), low, high, strict=True)
    ]
    return f"{out}   {told[0]:>22}   {told[1]:>22}"


def table(rows: pd.DataFrame, beside: str) -> str:
    """All ways, one line each, with the differences to the way `beside`."""
    parts = {
        way: rows[rows["way"] == way].sort_values(["run", "target"]).reset_index(drop=True)
        for way in WAYS
        if bool((rows["way"] == way).any())
    }
    lines = [
        f"{'way':<20}{'n':>4}{'PSNR (floor)':>16}{'SSIM (floor)':>16}{'found (chance)':>15}"
        f"{'copies':>7}{'seconds':>8}   {f'PSNR less {beside}':>22}   {f'SSIM less {beside}':>22}"
    ]
    for way, part in parts.items():
        lines.append(told(way, part, None if way == beside else parts.get(beside)))
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = case_options(__doc__, 24)
    made.add_argument("--rows", nargs="+", type=Path, default=[], help="scores written before")
    made.add_argument("--ways", default="", help="some of the ways, parted by ';'; default: all")
    made.add_argument(
        "--beside", default="dip", choices=WAYS, help="way that differences are taken to"
    )
    made.add_argument("--aux", metavar="D[:PATH]", help="data set of the attacker's own images")
    made.add_argument(
        "--control", choices=CONTROLS, help="attack uploads that say nothing of their images"
    )
    made.add_argument("--out", type=Path, help="CSV file for the scores of single targets")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Attack every run in every way and print one table."""
    chosen = parser().parse_args(arguments)
    ways = [way.strip() for way in chosen.ways.split(";") if way.strip()] or list(WAYS)
    if unknown := sorted(set(ways) - set(WAYS)):
        parser().error(f"no way {', '.join(unknown)}; there are: {'; '.join(WAYS)}")
    tables = [pd.read_csv(path) for path in chosen.rows]
    for folder in chosen.runs:
        run = Run(folder)
        case = case_of(run, chosen.drawn, chosen.half, chosen.targets, threat="strong")
        if chosen.aux:
            case = with_aux(case, chosen.aux, run.settings.train.seed)
        if chosen.control:
            case = controlled(case, chosen.control, run.settings.train.seed)
        for way in ways:
            rows, seconds = scored(case, way, run.settings.train.seed)
            tables.append(rows.assign(run=run.name))
            print(f"{run.name}, {way}: {rows['psnr'].mean():.2f} dB, {seconds:.0f} s", flush=True)
            if chosen.out:
                pd.concat(tables, ignore_index=True).to_csv(chosen.out, index=False)
    if not tables:
        parser().error("give runs, or --rows with scores written before")
    print(table(pd.concat(tables, ignore_index=True), chosen.beside))


if __name__ == "__main__":
    main()
