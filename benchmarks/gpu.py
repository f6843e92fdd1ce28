"""Every number that needs a GPU, in order of value, in the minutes given.

    python benchmarks/gpu.py --minutes 9
    python benchmarks/gpu.py --rehearse           on a CPU, at toy sizes
    python benchmarks/gpu.py --table              the numbers so far, as Markdown

Each step is a command of this folder or of the tests, run in a process of its own. What it prints
is in the JSON file the moment it is printed. A step that ended well is not repeated: the same
command goes on with the next one. A step is begun only if the minutes that it is expected to take
are left. The package is imported from this checkout; nothing is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tools
import torch

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("yaml", "safetensors", "pandas", "matplotlib", "sklearn", "skimage", "scipy", "rich",
          "PIL", "torchvision", "jinja2", "adjustText", "opacus", "msgspec", "shtab")  # fmt: skip
"""Modules that the package imports, beside torch and numpy; see gpu-requirements.txt."""
DONE, CUT, FAILED, SKIPPED = "done", "cut", "failed", "skipped"


@dataclass(frozen=True)
class Step:
    """One command and what is asked of it.

    Args:
        name: key of the JSON file.
        asked: what the number should be, in words.
        minutes: that it is expected to take on a GPU of a data centre.
        command: words behind ``python``; {speed}: a file of random images, {dataset}: the data set
            of ``--dataset``, {runs}: a folder, {device}: cuda, or cpu in a rehearsal.
        small: words that replace the sizes in a rehearsal, or None to leave the step out there.
    """

    name: str
    asked: str
    minutes: float
    command: str
    small: str | None = ""


INVERSION = "benchmarks/inversion.py"
QUICK = "--quick --steps 3 --targets 2 --rows 2 --many 2 --sizes 32 --architectures cnn4"
FEDERATION = (
    "-P -m fedre_privacy.cli.train --protocol {} --dataset {{dataset}} --models het10 --rounds 20 "
    "--set train.lr=0.01 --device {{device}} --runs-dir {{runs}} --json"
)
STEPS = (
    Step(
        "tests", "all pass", 1,
        "-P -m pytest -q -m gpu tests/attacks/test_graphs.py tests/contracts/test_attacks.py",
    ),
    Step(
        "64 targets, cnn4, 32 px", "20 times the loop", 0.7,
        f"{INVERSION} ratio --targets 64 --sizes 32 --architectures cnn4", QUICK,
    ),
    Step(
        "64 targets, resnet18, 64 px", "10 times the loop", 1,
        f"{INVERSION} ratio --targets 64 --sizes 64 --architectures resnet18", QUICK,
    ),
    Step(
        "256 targets, 2,000 steps", "120 s", 1.5,
        f"{INVERSION} whole --targets 256 --steps 2000 --sizes 32 --architectures cnn4", QUICK,
    ),
    Step(
        "1,024 targets to a fixed match", "60 s", 1,
        f"{INVERSION} whole --targets 1024 --steps 300 --sizes 32 --architectures cnn4", QUICK,
    ),
    Step(
        "shares of the limits", "", 1,
        f"{INVERSION} limits --architectures cnn4,resnet18 --sizes 32,64", QUICK,
    ),
    Step(
        "without the graph", "", 0.7,
        f"{INVERSION} ratio --targets 64 --sizes 32 --architectures cnn4 --eager", QUICK,
    ),
    Step(
        "in bfloat16", "", 0.7,
        f"{INVERSION} ratio --targets 64 --sizes 32 --architectures cnn4 --precision bfloat16",
        QUICK,
    ),
    Step("two ways of stacking", "", 0.5, f"{INVERSION} stacking", QUICK),
    Step("memory over targets", "flat", 1.5, f"{INVERSION} memory --many 64,256,1024", QUICK),
    Step(
        "rounds", "10 times plain", 1, "benchmarks/rounds.py --protocols fedre,fedgh,fedavg",
        "--clients 2 --samples 12 --batch 4 --repeats 1 --architecture cnn-5",
    ),
    Step(
        "clients together", "over 1.2 times one by one", 1,
        "benchmarks/together.py --architectures cnn4,resnet8,resnet18",
        "--architectures cnn4 --clients 2 --batch 4 --repeats 1",
    ),
    Step("decoder", "", 1, f"{INVERSION} decoder --sizes 32,64", QUICK),
    Step(
        "gradient matching", "", 1,
        "benchmarks/gradients.py speed --data {speed} --models cnn4,resnet18",
        "--models cnn4 --images 1 --steps 2",
    ),
    Step("trainings as on a CPU", "every line null", 2,
         "tests/devices/cases.py trainings {runs} {device}", None),
    Step("attacks as on a CPU", "every line null", 2,
         "tests/devices/cases.py attacks {runs} {device}", None),
    *(
        Step(f"{name}, het10", "as many rounds as fit", 3, FEDERATION.format(name), None)
        for name in ("fedre", "fedgh", "fedproto", "local")
    ),
)  # fmt: skip
"""In order of value."""


@contextmanager
def importable() -> Iterator[str]:
    """A folder in which the checkout lies as it is imported: links to its four packages."""
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "fedre_privacy"
        package.mkdir()
        for path in (ROOT / "fedre_privacy").iterdir():
            (package / path.name).symlink_to(path)
        for name in ("attacks", "defenses", "eval"):
            (package / name).symlink_to(ROOT / name)
        yield scratch


def missing() -> list[str]:
    """Modules that are needed and not there."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def random_images(folder: Path) -> Path:
    """A file of random images (3000, 32, 32, 3): enough where speed alone is measured."""
    rng, path = np.random.default_rng(0), folder / "random.npz"
    images = rng.integers(0, 256, (3000, 32, 32, 3), dtype=np.uint8)
    np.savez(path, x_train=images, y_train=np.arange(3000) % 10)
    return path


def words_of(step: Step, chosen: argparse.Namespace, scratch: Path) -> list[str]:
    """The command of a step, with what stands in braces filled in and sizes cut in a rehearsal."""
    device = "cpu" if chosen.rehearse else "cuda"
    filled = step.command.format(
        speed=scratch / "random.npz", dataset=chosen.dataset, runs=scratch / "runs", device=device
    )
    words = shlex.split(filled)
    if words[0] == INVERSION or words[0] in ("benchmarks/rounds.py", "benchmarks/together.py"):
        words += ["--device", device]
    if chosen.rehearse and step.small:
        words += shlex.split(step.small)  # of an option given twice the last one counts
    return words


class Book:
    """The JSON file: one entry per step, written at every line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = json.loads(path.read_text()) if path.is_file() else {}
        self.entries: dict[str, dict[str, Any]] = known.get("steps", {})

    def write(self) -> None:
        """Replace the file at once."""
        beside = self.path.with_suffix(".part")
        told = {"machine": machine(), "steps": self.entries}
        beside.write_text(json.dumps(told, indent=1) + "\n")
        beside.replace(self.path)


def machine() -> dict[str, str]:
    """What the numbers hold for."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "gpu": gpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }


def run(step: Step, words: Sequence[str], book: Book, left_s: float, paths: str) -> None:
    """Run a step, keeping every line it prints; end it when its time is over."""
    entry: dict[str, Any] = {
        "asked": step.asked,
        "command": shlex.join(["python", *words]),
        "status": CUT,
        "lines": [],
    }
    book.entries[step.name] = entry
    book.write()
    # Packages that were carried to this machine are found by the path that is set already.
    found = os.pathsep.join(filter(None, (paths, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": found, "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg"}
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    watch = threading.Timer(max(1.0, left_s), process.kill)
    watch.start()
    try:
        for line in process.stdout or ():
            entry["lines"].append(line.rstrip("\n"))
            entry["seconds"] = round(time.monotonic() - started, 1)
            book.write()
        code = process.wait()
        entry["seconds"] = round(time.monotonic() - started, 1)
        if watch.is_alive():
            entry["status"] = DONE if code == 0 else FAILED
    finally:
        watch.cancel()
        process.kill()
    book.write()


def table(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """What the steps came to, as Markdown."""
    out = ["| step | asked | status | seconds |", "|---|---|---|---|"]
    out += [
        f"| {name} | {entry['asked'] or '-'} | {entry['status']} | {entry.get('seconds', '-')} |"
        for name, entry in entries.items()
    ]
    for name, entry in entries.items():
        lines = "\n".join(entry["lines"][-40:])
        out += ["", f"**{name}**: `{entry['command']}`", "", "```", lines, "```"]
    return "\n".join(out)


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = tools.options(__doc__)
    made.add_argument("--minutes", type=float, default=9.0, help="to be done in (default: 9)")
    made.add_argument("--out", type=Path, help="the JSON file (gpu.json, or rehearsal.json)")
    made.add_argument("--dataset", default="", help="as in fedre-train, for the ten architectures")
    made.add_argument("--only", default="", help="steps whose names hold this text")
    made.add_argument("--rehearse", action="store_true", help="on a CPU, at toy sizes")
    made.add_argument("--table", action="store_true", help="print what the JSON file holds")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done yet; return 1 if a step failed."""
    chosen = parser().parse_args(arguments)
    book = Book(chosen.out or Path("rehearsal.json" if chosen.rehearse else "gpu.json"))
    if chosen.table:
        print(table(book.entries))
        return 0
    absent = missing()
    if absent:
        print(f"Absent: {', '.join(absent)}. See benchmarks/gpu-requirements.txt.")
        return 1
    if not chosen.rehearse and not torch.cuda.is_available():
        print("No GPU is here. --rehearse runs every step on the CPU at toy sizes.")
        return 1
    ends = time.monotonic() + 60 * chosen.minutes
    with importable() as paths, tempfile.TemporaryDirectory() as scratch:
        random_images(Path(scratch))
        for step in STEPS:
            if chosen.only not in step.name or (chosen.rehearse and step.small is None):
                continue
            if book.entries.get(step.name, {}).get("status") == DONE:
                print(f"{step.name}: done before")
                continue
            if "{dataset}" in step.command and not chosen.dataset:
                print(f"{step.name}: left out, it needs --dataset")
                continue
            left_s = ends - time.monotonic()
            if left_s < 60 * (0.05 if chosen.rehearse else step.minutes):
                print(f"{step.name}: {left_s:.0f} s are left, not begun")
                continue
            run(step, words_of(step, chosen, Path(scratch)), book, left_s, paths)
            entry = book.entries[step.name]
            print(f"{step.name}: {entry['status']} in {entry.get('seconds', 0)} s", flush=True)
    return 1 if any(entry["status"] == FAILED for entry in book.entries.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
