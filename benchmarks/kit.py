"""The kit: numbers of results/performance.md that need a GPU, in order of value."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scheduling import Job


@dataclass(frozen=True)
class Step:
    """One command and what is asked of it.

    Args:
        name: of its result file.
        asked: what the number should be, in words.
        minutes: that it is expected to take on a GPU of a data centre.
        command: words behind ``python``; {speed}: a file of random images, {runs}: a folder,
            {device}: cuda, or cpu in a rehearsal, {data}: the data set that is given.
        small: words that replace the sizes in a rehearsal, or None to leave the step out there.
    """

    name: str
    asked: str
    minutes: float
    command: str
    small: str | None = ""


INVERSION = "benchmarks/inversion.py"
ON_DEVICE = (
    INVERSION, "benchmarks/rounds.py", "benchmarks/captured.py", "benchmarks/surrogates.py",
)  # fmt: skip
"""Programs that take --device."""
QUICK = "--quick --steps 3 --targets 2 --rows 2 --many 2 --sizes 32 --architectures cnn4"
STEPS = (
    Step(
        "tests", "all pass", 1,
        "-P -m pytest -q -m gpu tests/attacks/test_graphs.py tests/contracts/test_attacks.py "
        "tests/federation/test_captured.py tests/federation/test_captured_passes.py",
    ),
    Step(
        "inversion-cnn4-32px", "64 targets: 20 times the loop", 0.7,
        f"{INVERSION} ratio --targets 64 --sizes 32 --architectures cnn4", QUICK,
    ),
    Step(
        "inversion-resnet18-64px", "64 targets: 10 times the loop", 1,
        f"{INVERSION} ratio --targets 64 --sizes 64 --architectures resnet18", QUICK,
    ),
    Step(
        "whole-256-targets", "2,000 steps in 120 s", 1.5,
        f"{INVERSION} whole --targets 256 --steps 2000 --sizes 32 --architectures cnn4", QUICK,
    ),
    Step(
        "whole-1024-targets", "a fixed match in 60 s", 1,
        f"{INVERSION} whole --targets 1024 --steps 300 --sizes 32 --architectures cnn4", QUICK,
    ),
    Step(
        "limits", "shares of the rates of a matrix product and a copy", 1,
        f"{INVERSION} limits --architectures cnn4,resnet18 --sizes 32,64", QUICK,
    ),
    Step(
        "inversion-eager", "what the captured graph gains", 0.7,
        f"{INVERSION} ratio --targets 64 --sizes 32 --architectures cnn4 --eager", QUICK,
    ),
    Step(
        "inversion-bfloat16", "what bfloat16 gains", 0.7,
        f"{INVERSION} ratio --targets 64 --sizes 32 --architectures cnn4 --precision bfloat16",
        QUICK,
    ),
    Step("stacking", "which way of stacking is faster", 0.5, f"{INVERSION} stacking", QUICK),
    Step("memory", "flat over targets", 1.5, f"{INVERSION} memory --many 64,256,1024", QUICK),
    Step(
        "rounds", "10 times plain", 1, "benchmarks/rounds.py --protocols fedre,fedgh,fedavg",
        "--clients 2 --samples 12 --batch 4 --repeats 1 --architecture cnn-5",
    ),
    Step(
        "captured", "ten times as fast as step by step", 1.5,
        "benchmarks/captured.py --architectures cnn4,resnet18,het10 --repeats 3",
        "--architectures cnn4 --clients 2 --steps 2 --repeats 1",
    ),
    Step("decoder", "updates a second, captured", 1, f"{INVERSION} decoder --sizes 32,64", QUICK),
    Step(
        "gradients", "steps a second, captured", 1,
        "benchmarks/gradients.py speed --data {speed} --models cnn4,resnet18",
        "--models cnn4 --images 1 --steps 2",
    ),
    Step("trainings-as-on-a-cpu", "every line null", 2,
         "tests/devices/cases.py trainings {runs} {device}", None),
    Step("attacks-as-on-a-cpu", "every line null", 2,
         "tests/devices/cases.py attacks {runs} {device}", None),
    Step(
        "surrogates", "whether 20,000 steps tell more than 2,000", 8,
        "benchmarks/surrogates.py --dataset npz:{data} --per-class 600 --out {runs}",
        "--per-class 20 --clients 3 --trained 2 --steps 20 --seeds 11 --targets 2",
    ),
)  # fmt: skip
"""In order of value."""


def jobs(scratch: Path, data: Path | None, *, rehearse: bool) -> list[Job]:
    """The steps as jobs, none beside another, since each measures speed.

    Args:
        scratch: folder for the file of random images and for runs.
        data: npz file; None: steps that need one are left out.
        rehearse: on a CPU, at toy sizes.
    """
    device = "cpu" if rehearse else "cuda"
    found = []
    for step in STEPS:
        if (rehearse and step.small is None) or (data is None and "{data}" in step.command):
            continue
        words = words_of(step, scratch, device, data, small=rehearse)
        minutes = 0.0 if rehearse else step.minutes
        found.append(
            Job(step.name, step.name, minutes, tuple(words), asked=step.asked, alone=not rehearse)
        )
    return found


def words_of(
    step: Step, scratch: Path, device: str, data: Path | None, *, small: bool
) -> Sequence[str]:
    """The command of a step, with what stands in braces filled in and sizes cut in a rehearsal."""
    filled = step.command.format(
        speed=scratch / "random.npz", runs=scratch / "runs", device=device, data=data
    )
    words = shlex.split(filled)
    if words[0] in ON_DEVICE:
        words += ["--device", device]
    if small and step.small:
        words += shlex.split(step.small)  # of an option given twice the last one counts
    return words


def random_images(folder: Path) -> Path:
    """A file of random images (3000, 32, 32, 3): enough where speed alone is measured."""
    rng, path = np.random.default_rng(0), folder / "random.npz"
    images = rng.integers(0, 256, (3000, 32, 32, 3), dtype=np.uint8)
    np.savez(path, x_train=images, y_train=np.arange(3000) % 10)
    return path
