"""What do settings of the deep image prior cost, and how near does each come?

Attacks single representations of recorded runs with several settings of `dip`, in turn, on one
core. Printed for each setting: processor seconds of all searches, and until half of the targets
are within the fixed match; PSNR, SSIM and the share found beside their floors, and the paired
difference to the first setting with its 95 % interval (clients of runs are the units).

Settings were chosen on half of the images of CIFAR-10 and on runs of training seed 0; the other
half and other seeds are for reports only (see misses.py, whose halves these are).

    python benchmarks/priors.py RUN [RUN ...] [--setting "channels=[16,32] steps=300"] ...
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from misses import Case, case_of, case_options, paired

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.eval import evaluate
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.runs.run import Run

FIXED_MATCH = 1e-3
"""Relative squared distance of representations."""


@dataclass(frozen=True)
class Searched:
    """One setting on one run: scores of each target, and processor seconds."""

    rows: pd.DataFrame
    seconds: float
    to_match: float | None


def parsed(text: str) -> dict[str, Any]:
    """Values of `key=value key=value`, read as JSON."""
    pairs = (part.split("=", 1) for part in text.split())
    made = {key: json.loads(value) for key, value in pairs}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in made.items()}


def searched(case: Case, setting: Mapping[str, Any], seed: int) -> Searched:
    """Attack the targets of a case."""
    started = time.process_time()
    found = DeepImagePrior(**setting)(case.observation, Context(seed=seed))
    seconds = time.process_time() - started
    assert isinstance(found, Reconstruction)
    near = (found.trace <= FIXED_MATCH).double().mean(1) >= 0.5
    reached = near.nonzero().flatten()
    steps = int(found.trace_steps[-1]) + 1
    to_match = seconds * (int(found.trace_steps[reached[0]]) + 1) / steps if len(reached) else None
    chosen = {name: metrics.get(name)() for name in ("psnr", "ssim")}
    scores = evaluate(found, case.truth, case.public, metrics=chosen, seed=seed)
    rows = scores.rows.assign(chance=scores.get("hit1").floor)
    return Searched(rows, seconds, to_match)


def told(name: str, parts: Sequence[Searched], first: Sequence[Searched]) -> str:
    """One line of the table."""
    rows = pd.concat([part.rows for part in parts], ignore_index=True)
    seconds = sum(part.seconds for part in parts)
    matches = [part.to_match for part in parts if part.to_match is not None]
    to_match = f"{sum(matches):.1f}" if len(matches) == len(parts) else "-"
    line = (
        f"{name:<44} n {len(rows)}  {seconds:6.1f} s  match {to_match:>5} s  "
        f"PSNR {rows['psnr'].mean():.2f} ({rows['psnr_floor'].mean():.2f})  "
        f"SSIM {rows['ssim'].mean():.3f} ({rows['ssim_floor'].mean():.3f})  "
        f"found {rows['hit1'].mean():.0%} ({rows['chance'].mean():.1%})"
    )
    if parts is first:
        return line
    before = pd.concat([part.rows for part in first], ignore_index=True)
    return f"{line}\n    less the first: {paired(before, rows)}"


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = case_options(__doc__, 24)
    made.add_argument(
        "--setting", action="append", default=[], help="of dip, as key=value ...; repeatable"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack every run with every setting and print one table."""
    chosen = parser().parse_args(arguments)
    if not chosen.runs:
        parser().error("give at least one RUN")
    torch.set_num_threads(1)
    settings = chosen.setting or ["", "channels=[16,16] steps=250"]
    parts: dict[str, list[Searched]] = {setting: [] for setting in settings}
    for folder in chosen.runs:
        run = Run(folder)
        seed = run.settings.train.seed
        case = case_of(run, chosen.drawn, chosen.half, chosen.targets)
        for setting in settings:
            one = searched(case, parsed(setting), seed)
            one.rows["run"] = run.name
            parts[setting].append(one)
    first = parts[settings[0]]
    for setting in settings:
        print(told(setting or "default", parts[setting], first), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
