"""Seconds until a help page or a list is there, of the commands as they are installed.

python benchmarks/startup.py --repeats 5

Each is started so often; shown are the median of the wall clock and of the time on the processor.
The first start, which reads files that the later ones find in memory, is left out. The last line is
Python that does nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tools import options

ASKED = (
    "fedre-train --help", "fedre-attack --help", "fedre-attack --version", "fedre-attack list",
    "fedre-attack list --json", "fedre-attack --preset list", "fedre-attack --no-such-option",
    "fedre-attack --print-completion bash", "fedre-benchmark --help",
    "fedre-benchmark --communication --help", "fedre-audit --help", "fedre-membership --help",
    "fedre-view --help", "python -c pass",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = options(__doc__)
    made.add_argument("--repeats", type=int, default=5, help="starts of each (default: 5)")
    return made


def took(words: list[str]) -> tuple[float, float]:
    """Seconds of wall clock and of processor that a command takes."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    wall, after = time.perf_counter() - began, os.times()
    busy = after.children_user + after.children_system
    return wall, busy - before.children_user - before.children_system


def main() -> None:
    """Start each command and print what it took."""
    repeats = parser().parse_args().repeats
    scripts = Path(sys.executable).parent
    print(f"{'command':<42}{'wall, s':>9}{'processor, s':>14}")
    for asked in ASKED:
        name, *words = asked.split()
        found = [took([str(scripts / name), *words]) for _ in range(repeats + 1)][1:]
        wall, busy = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{asked:<42}{wall:>9.2f}{busy:>14.2f}")


if __name__ == "__main__":
    main()
