"""``fedre-benchmark leaderboard``: a folder of claims as one page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import shtab

from .command import command
from .options import add_output_options
from .output import Output


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-benchmark leaderboard",
        allow_abbrev=False,
        description="Write one page of the claims and verifications in a folder: claimed beside "
        "re-attacked, with a flag for what did not repeat. It needs no server and no network.",
    )
    made.add_argument(
        "folder", type=Path, nargs="?", default=Path("claims"), metavar="FOLDER",
        help="holds claims and their verifications (default: claims)",
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # fmt: skip
    made.add_argument(
        "--out", type=Path, metavar="FILE.html",
        help="where to write (default: leaderboard.html in FOLDER)",
    )  # fmt: skip
    made.add_argument("--open", action="store_true", help="open the page in the browser")
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv, folder="folder")


def _run(options: argparse.Namespace, output: Output) -> int:
    from .commands import leaderboard

    return leaderboard.run(options, output)
