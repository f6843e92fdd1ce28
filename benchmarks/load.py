"""How time, memory, files and bytes grow with clients, classes, targets, rounds and jobs.

Each axis is one piece of work at growing sizes, on images of noise and a small model, so that what
grows is the package's own part. Each point is a process of its own on one core, so that its peak of
memory is its own. The exponent between two sizes is log(ratio of costs) / log(ratio of sizes): 1 is
linear, 2 is quadratic; below 1 a constant part still weighs. A point that takes more than --limit
seconds of processor time is ended and said; larger ones of its axis are left out.

clients  a round of training with all clients, evaluation, and an attack on 24 targets
chosen   the same where 100 of the clients take part in the round; all are evaluated
classes  two rounds of training with that many classes, and an attack on 24 prototypes
targets  an attack on that many single representations, by a linear map
rounds   that many rounds of training, and an attack that reads all of them
jobs     a benchmark whose jobs are finished (one result, copied): plan, read, tables, page

Usage: python benchmarks/load.py [--axes clients,classes] [--sizes 100,1000] [--out DIR]
Points that DIR holds are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import tools

SIDE = 16


class Point(TypedDict):
    """What one size of an axis took."""

    axis: str
    size: int
    parts: dict[str, float]
    """Processor seconds of each part."""
    peak_bytes: int
    files: int
    bytes: int
    largest_bytes: int
    largest: str


# --- one point, in a process of its own ------------------------------------------------------


class Clock:
    """Processor seconds of named parts, one after another, after everything was imported."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.last = time.process_time()

    def part(self, name: str) -> None:
        """What has passed since the last part was `name`."""
        now = time.process_time()
        self.parts[name] = now - self.last
        self.last = now


def _images(folder: Path, count: int, classes: int) -> str:
    import numpy as np

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 1, SIDE, SIDE), dtype=np.uint8)
    np.savez(folder / "images.npz", x=images, y=np.arange(count) % classes)
    return str(folder / "images.npz")


def _train(folder: Path, clock: Clock, data: str, protocol: str, **settings: Any) -> Any:
    from fedre_privacy import api

    clients, rounds = settings.pop("clients"), settings.pop("rounds")
    clock.part("data")
    run = api.train(
        protocol, {"name": "npz", "path": data}, clients=clients, rounds=rounds, partition="iid",
        models={"name": "cnn4", "dim": 8}, device="cpu", runs=folder / "runs", set=settings,
    )  # fmt: skip
    clock.part("training")
    return run


def _attack(run: Any, clock: Clock, name: str, **given: Any) -> None:
    from fedre_privacy import api

    api.attack(run, name, device="cpu", isolation="same-process", **given)
    clock.part("attack")


def clients(size: int, folder: Path, clock: Clock, taking_part: int | None = None) -> None:
    """Two images for each client: one to train on and one to test."""
    data = _images(folder, 2 * size, 10)
    settings = {"train.train_ratio": 0.5, "train.batch_size": 1}
    if taking_part:
        settings["train.join_ratio"] = min(1.0, taking_part / size)
    run = _train(folder, clock, data, "fedre", clients=size, rounds=1, **settings)
    _attack(run, clock, "linear", threat="strong", targets=24)


def chosen(size: int, folder: Path, clock: Clock) -> None:
    """A hundred clients take part."""
    clients(size, folder, clock, taking_part=100)


def classes(size: int, folder: Path, clock: Clock) -> None:
    """Eight images of each class, shared out evenly to four clients."""
    data = _images(folder, 8 * size, size)
    run = _train(folder, clock, data, "fedproto", clients=4, rounds=2)
    _attack(run, clock, "linear", threat="strong", targets=24)


def targets(size: int, folder: Path, clock: Clock) -> None:
    """Targets are spread over ten clients, all of whose images are representations."""
    data = _images(folder, 2 * size + 400, 10)
    run = _train(folder, clock, data, "fedgh", clients=10, rounds=1, **{"train.batch_size": 200})
    _attack(
        run, clock, "linear", target="representations", threat="strong", targets=size,
        set={"eval.ceiling": 0, "attack.views": 1},
    )  # fmt: skip


def rounds(size: int, folder: Path, clock: Clock) -> None:
    """Two clients with a batch each; an attack that averages a client's uploads of all rounds."""
    data = _images(folder, 120, 3)
    run = _train(folder, clock, data, "fedgh", clients=2, rounds=size)
    _attack(run, clock, "average", threat="strong")


def jobs(size: int, folder: Path, clock: Clock) -> None:
    """Ten variants of a tenth as many seeds, all finished."""
    import torch

    from fedre_privacy import api
    from fedre_privacy.benchmarking.jobs import Place
    from fedre_privacy.benchmarking.sweep import run_job
    from fedre_privacy.core import files
    from fedre_privacy.reports.attack import attack_page

    data = _images(folder, 120, 3)
    base = {
        "data": {"name": "npz", "path": data},
        "partition": {"name": "iid"},
        "model": {"name": "cnn4", "dim": 8},
        "train": {"clients": 6, "rounds": 1},
        "protocol": {"name": "fedre"},
    }
    vary = {f"variant {n}": {"train": {"lr": 0.01 * (n + 1)}} for n in range(min(10, size))}
    place = Place(folder / "benchmark", folder / "runs")
    described = {
        "protocols": [],
        "schemes": [],
        "defenses": [],
        "targets": 6,
        "attacks": ["linear@uploaded@strong"],
    }
    clock.part("data")
    wanted = api.comparison(
        base, [], sweep=None, vary=vary, seeds=range(max(1, size // 10)), **described
    )
    clock.part("plan")
    done = run_job(wanted.jobs[0], place, torch.device("cpu"), attack_page)
    for job in wanted.jobs[1:]:
        files.write_json(
            place.result(job),
            {**done, **{key: job.result()[key] for key in ("label", "seed", "training")}},
        )
    clock.part("first job, copied")
    api.run_benchmark(wanted, runs=place.runs, out=place.folder, device="cpu")
    clock.part("tables and page")


AXES: dict[str, tuple[tuple[int, ...], Callable[[int, Path, Clock], None]]] = {
    "clients": ((100, 300, 1000), clients),
    "chosen": ((100, 1000, 10000), chosen),
    "classes": ((10, 100, 1000), classes),
    "targets": ((100, 1000, 10000), targets),
    "rounds": ((10, 100, 1000), rounds),
    "jobs": ((10, 100, 1000), jobs),
}


def measure(axis: str, size: int, folder: Path) -> Point:
    """Do the work of one point in this process."""
    import torch

    from fedre_privacy import api  # noqa: F401
    from fedre_privacy.core.memory import peak_bytes

    torch.set_num_threads(1)
    before, clock = peak_bytes(), Clock()
    AXES[axis][1](size, folder, clock)
    (folder / "images.npz").unlink()
    written = [path for path in folder.rglob("*") if path.is_file()]
    largest = max(written, key=lambda path: path.stat().st_size)
    return {
        "axis": axis,
        "size": size,
        "parts": clock.parts,
        "peak_bytes": peak_bytes() - before,
        "files": len(written),
        "bytes": sum(path.stat().st_size for path in written),
        "largest_bytes": largest.stat().st_size,
        "largest": largest.name,
    }


# --- all points ------------------------------------------------------------------------------


def point(axis: str, size: int, limit: int) -> Point | None:
    """Measure a point in a new process, or None where it took more processor time than `limit`.

    Raises:
        RuntimeError: it failed, with what it said.
    """
    folder = Path(tempfile.mkdtemp(prefix="load-"))
    command = [sys.executable, __file__, "--point", f"{axis}:{size}", "--out", str(folder)]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))

    try:
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited)
        if done.returncode in (-24, -9):  # SIGXCPU
            return None
        if done.returncode:
            raise RuntimeError(f"{axis} {size} failed:\n{done.stderr[-3000:]}")
        found: Point = json.loads(done.stdout.splitlines()[-1])
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


COSTS: dict[str, Callable[[Point], float]] = {
    "seconds": lambda found: sum(found["parts"].values()),
    "memory": lambda found: found["peak_bytes"],
    "files": lambda found: found["files"],
    "bytes": lambda found: found["bytes"],
}


def exponent(small: Point, large: Point, cost: Callable[[Point], float]) -> float:
    """The power with which a cost grew from one size to another."""
    ratio = max(cost(large), 1e-9) / max(cost(small), 1e-9)
    return math.log(ratio) / math.log(large["size"] / small["size"])


def table(found: Sequence[Point]) -> str:
    """Costs of every point, and exponents since the point before it."""
    from fedre_privacy.core.units import human_bytes

    lines = [
        "| axis | size | seconds | memory | files | bytes | exponents of these four |",
        "|---|---|---|---|---|---|---|",
    ]
    before: Point | None = None
    for one in found:
        parts = ", ".join(f"{name} {value:.1f}" for name, value in one["parts"].items())
        grown = "-"
        if before is not None and before["axis"] == one["axis"]:
            grown = ", ".join(f"{exponent(before, one, cost):.2f}" for cost in COSTS.values())
        lines.append(
            f"| {one['axis']} | {one['size']:,} | {sum(one['parts'].values()):.1f} ({parts}) "
            f"| {human_bytes(one['peak_bytes'])} | {one['files']} "
            f"| {human_bytes(one['bytes'])}, of which {one['largest']} "
            f"{human_bytes(one['largest_bytes'])} | {grown} |"
        )
        before = one
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--axes", default=",".join(AXES))
    options.add_argument("--sizes", default=None, help="of every axis; none: each its own")
    options.add_argument("--out", type=Path, default=None, help="folder of points.json")
    options.add_argument("--limit", type=int, default=120, help="processor seconds of a point")
    options.add_argument("--point", default=None, help=argparse.SUPPRESS)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not measured yet, and print the table."""
    chosen = parser().parse_args(arguments)
    if chosen.point:
        axis, size = chosen.point.split(":")
        print(json.dumps(measure(axis, int(size), chosen.out)))
        return
    file = None if chosen.out is None else chosen.out / "points.json"
    kept: list[Point] = json.loads(file.read_text()) if file and file.is_file() else []
    shown: list[Point] = []
    for axis in chosen.axes.split(","):
        sizes = AXES[axis][0] if chosen.sizes is None else map(int, chosen.sizes.split(","))
        for size in sizes:
            found = next((p for p in kept if (p["axis"], p["size"]) == (axis, size)), None)
            if found is None:
                found = point(axis, size, chosen.limit)
                if found is None:
                    print(f"{axis} {size}: more than {chosen.limit} s of a core; ended")
                    break
                kept.append(found)
                if file is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(json.dumps(kept, indent=1))
            shown.append(found)
    print(table(shown))


if __name__ == "__main__":
    main()
