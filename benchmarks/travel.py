"""Gather in one folder what a GPU's machine without a network needs, and say what to type there.

    python benchmarks/travel.py FILE.npz [--python 3.12] [--to .travel]

Gathers wheels of the packages that such a machine lacks (benchmarks/gpu-requirements.txt) and the
files given, for example a data set and the script that unpacks it. Prints everything with its size
and refuses more than 50 MiB, the checkout's own files counted.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tools
from scheduling import ROOT, machine

MOST = 50 << 20
"""Bytes that travel at most."""
REQUIREMENTS = ROOT / "benchmarks" / "gpu-requirements.txt"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = tools.options(__doc__)
    made.add_argument("files", type=Path, nargs="*", metavar="FILE")
    made.add_argument("--python", default="3.12", help="version over there (default: 3.12)")
    made.add_argument("--to", type=Path, default=ROOT / ".travel", metavar="DIR")
    made.add_argument("--no-wheels", action="store_true", help="the machine has every package")
    return made


def fetch_wheels(folder: Path, python: str) -> None:
    """Download the wheels for another machine's Python."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    words += ["--only-binary=:all:", "--python-version", python, "--dest", str(folder)]
    for platform in PLATFORMS:
        words += ["--platform", platform]
    subprocess.run([*words, "--requirement", str(REQUIREMENTS)], check=True)


def checkout_bytes() -> int:
    """What the checkout's own files take."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    names = [name for name in listed.stdout.split("\0") if name]
    return sum((ROOT / name).stat().st_size for name in names if (ROOT / name).is_file())


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather, list, and say what to type; return 1 where it is too much."""
    chosen = parser().parse_args(arguments)
    absent = [str(path) for path in chosen.files if not path.is_file()]
    if absent:
        print(f"Not there: {', '.join(absent)}.")
        return 1
    chosen.to.mkdir(parents=True, exist_ok=True)
    for path in chosen.files:
        shutil.copyfile(path, chosen.to / path.name)
    if not chosen.no_wheels:
        fetch_wheels(chosen.to, chosen.python)
    sizes = {path.name: path.stat().st_size for path in sorted(chosen.to.iterdir())}
    sizes["the checkout"] = checkout_bytes()
    for name, size in sizes.items():
        print(f"{size / 2**20:8.2f} MiB  {name}")
    whole = sum(sizes.values())
    print(f"{whole / 2**20:8.2f} MiB  in all, of {MOST >> 20}")
    if whole > MOST:
        print("That is too much to carry.")
        return 1
    there = chosen.to.name
    print(
        f"""
Over there, in the checkout:
  python3 -m pip install -q --no-index --no-deps --target {there}/site {there}/*.whl
  export PYTHONPATH={there}/site
  python3 {there}/unpack_cifar10.py {there}/cifar10-jpeg-packed.npz {there}/cifar10-jpeg.npz
  python3 benchmarks/gpu.py --minutes 9 --jobs 8 --data {there}/cifar10-jpeg.npz \\
      --runs {there}/runs --commit {machine()["commit"]} --ship results.json
Back here:
  python benchmarks/gpu.py --take results.json"""
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
