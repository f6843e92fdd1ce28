"""What all cores of one machine are worth to a round, alone and beside a busy neighbour.

Three ways of the same rounds (protocol, clients, data, seeds) take turns: *threads*, every client
in turn on all threads; *one*, every client in turn on one thread; *cores*, a client on each core,
as the package does it. Each is timed on an idle machine and beside processes that never rest. What
was uploaded must be the same bytes for any number of cores.

Usage: python benchmarks/cores.py [--protocols fedre,fedavg] [--cores 2] [--busy 1] [--repeats 3]
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
            here = loop.Here(fed.protocol, fed.clients, fed.setting, lambda *made: None)
            loop.lead(
                fed.protocol, here, fed.server, fed.setting, recorder=recorder,
                checkpoints=checkpoints, report=lambda event: None,
            )  # fmt: skip
        else:
            loop.run(
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
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = parser().parse_args(arguments)
    size = (chosen.rounds, chosen.clients, chosen.samples)
    print(f"seconds of a round, {chosen.clients} clients, {chosen.cores} cores; median (range)")
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
