"""What all cores of one machine are worth to a round, alone and beside a busy neighbour.

Three ways of the same rounds (protocol, clients, data, seeds) take turns: *threads*, every client
in turn on all threads; *one*, every client in turn on one thread; *cores*, a client on each core,
as the package does it. Each is timed on an idle machine and beside processes that never rest. What
was uploaded must be the same bytes for any number of cores.

With --against DIR, a checkout of another version, rounds of that version and of this one take
turns in processes of their own, each as it trains by default, with nothing set for its threads;
seconds of the clock and of the processor. With --tested N every client also has N test images, and
accuracy is measured in every round, as trainings do.

Usage: python benchmarks/cores.py [--protocols fedre,fedavg] [--cores 2] [--busy 1] [--repeats 3]
                                  [--against DIR [--tested 107]]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tools
import torch
from rounds import build

from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder

WAYS = ("threads", "one", "cores")
SPIN = "while True: pass"
ALONE = """
import dataclasses, os, sys, tempfile, time
from pathlib import Path
import torch
from rounds import build
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder
from fedre_privacy.protocols.blocks.state import Samples
name, (cores, rounds, clients, samples, tested) = sys.argv[1], map(int, sys.argv[2:])
torch.set_num_threads(cores)
fed = build(
    name, clients=clients, samples=samples + tested, batch=32, rounds=rounds, architecture="cnn4",
    device=torch.device("cpu"),
)
if tested:
    for client in fed.clients:
        images, labels = client.train.images, client.train.labels
        client.train = Samples(images[tested:], labels[tested:])
        client.test = Samples(images[:tested], labels[:tested])
    often = dataclasses.replace(fed.setting.training, eval_every=1)
    fed.setting = dataclasses.replace(fed.setting, training=often)
with tempfile.TemporaryDirectory() as folder:
    recorder, kept = Recorder(Path(folder) / "uploads"), Path(folder) / "checkpoints"
    begun, spent = time.perf_counter(), sum(os.times()[:4])
    train = getattr(loop, "run_rounds", None) or loop.run  # its name in other versions
    train(
        fed.protocol, fed.clients, fed.server, fed.setting, recorder=recorder, checkpoints=kept,
        report=lambda event: None, keep=lambda *made: None,
    )
    print((time.perf_counter() - begun) / rounds, (sum(os.times()[:4]) - spent) / rounds)
"""
"""Seconds of a round, clock and processor, in whatever version is imported."""
PARTS = ("attacks", "defenses", "eval")
"""Folders of a checkout that the package holds under its own name."""


def seconds_of(
    way: str, name: str, cores: int, rounds: int, clients: int, samples: int
) -> tuple[float, str]:
    """Seconds of a round, without evaluation but in the last; and a hash of all uploads."""
    fed = build(
        name, clients=clients, samples=samples, batch=32, rounds=rounds, architecture="cnn4",
        device=torch.device("cpu"),
    )  # fmt: skip
    torch.set_num_threads(1 if way == "one" else cores)
    with tempfile.TemporaryDirectory() as folder:
        recorder, checkpoints = Recorder(Path(folder) / "uploads"), Path(folder) / "checkpoints"
        begun = time.perf_counter()
        if way == "threads":
            here = loop.LocalCohort(fed.protocol, fed.clients, fed.setting, lambda *made: None)
            loop.lead(
                fed.protocol, here, fed.server, fed.setting, recorder=recorder,
                checkpoints=checkpoints, report=lambda event: None,
            )  # fmt: skip
        else:
            loop.run_rounds(
                fed.protocol, fed.clients, fed.server, fed.setting, recorder=recorder,
                checkpoints=checkpoints, report=lambda event: None, keep=lambda *made: None,
            )  # fmt: skip
        taken = time.perf_counter() - begun
        digest = hashlib.sha256()
        for path in sorted((Path(folder) / "uploads").glob("*.safetensors")):
            digest.update(path.read_bytes())
    return taken / rounds, digest.hexdigest()


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that never rest."""
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def importable(checkout: Path) -> Iterator[dict[str, str]]:
    """The environment of a process that imports the package and benchmarks of a checkout."""
    if not (checkout / "benchmarks" / "rounds.py").is_file():
        raise SystemExit(f"{checkout} is no checkout of fedre-privacy: no benchmarks/rounds.py")
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "fedre_privacy"
        package.mkdir()
        for part in [*(checkout / "fedre_privacy").iterdir(), *(checkout / p for p in PARTS)]:
            (package / part.name).symlink_to(part.resolve())
        path = os.pathsep.join([folder, str((checkout / "benchmarks").resolve())])
        given = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
        yield given | {"PYTHONPATH": path}


def beside(other: Path, protocols: Sequence[str], repeats: int, size: Sequence[int]) -> None:
    """Print seconds of rounds of two versions that take turns, and their ratio."""
    here = Path(__file__).resolve().parent.parent
    with importable(other) as theirs, importable(here) as ours:
        for name in protocols:
            pairs = []
            for _ in range(repeats):
                command = [sys.executable, "-P", "-c", ALONE, name, *map(str, size)]
                done = [
                    subprocess.run(command, env=env, check=True, capture_output=True, text=True)
                    for env in (theirs, ours)
                ]
                pairs.append([tuple(map(float, one.stdout.split())) for one in done])
            for clock, kind in enumerate(("clock", "processor")):
                then, now = zip(*[[one[clock] for one in pair] for pair in pairs], strict=True)
                ratios = [b / a for a, b in zip(then, now, strict=True)]
                told = "  ".join(
                    f"{what} {statistics.median(v):.3f} ({min(v):.3f} to {max(v):.3f})"
                    for what, v in (("other", then), ("this", now), ("this/other", ratios))
                )
                print(f"{name:<10} {kind:<10} {told}", flush=True)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--protocols", default="fedre,fedavg")
    options.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    options.add_argument("--busy", type=int, default=1, help="neighbours")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--samples", type=int, default=320, help="training images of each client")
    options.add_argument("--against", type=Path, help="a checkout of another version")
    options.add_argument("--tested", type=int, default=0, help="test images of each client")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = parser().parse_args(arguments)
    size = (chosen.rounds, chosen.clients, chosen.samples)
    if chosen.tested and chosen.against is None:
        raise SystemExit("--tested goes with --against DIR")
    print(f"seconds of a round, {chosen.clients} clients, {chosen.cores} cores; median (range)")
    if chosen.against is not None:
        beside(
            chosen.against,
            chosen.protocols.split(","),
            chosen.repeats,
            (chosen.cores, *size, chosen.tested),
        )
        return
    for name in chosen.protocols.split(","):
        for busy in (0, chosen.busy):
            taken: dict[str, list[float]] = {way: [] for way in WAYS}
            with neighbours(busy):
                for _ in range(chosen.repeats):
                    for way in WAYS:
                        taken[way].append(seconds_of(way, name, chosen.cores, *size)[0])
            middle = {way: statistics.median(values) for way, values in taken.items()}
            told = "  ".join(
                f"{way} {middle[way]:.2f} ({min(v):.2f} to {max(v):.2f})"
                for way, v in taken.items()
            )
            ratio = middle["cores"] / middle["threads"]
            print(f"{name:<10} {busy} busy  {told}  cores/threads {ratio:.2f}", flush=True)
        prints = {cores: seconds_of("cores", name, cores, *size)[1] for cores in (1, 2, 4)}
        same = len(set(prints.values())) == 1
        print(f"{name:<10} bytes of 1, 2 and 4 cores {'equal' if same else 'DIFFER'}", flush=True)


if __name__ == "__main__":
    main()
