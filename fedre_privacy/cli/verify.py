"""``fedre-attack verify``: is a run's folder what was recorded?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .command import command
from .options import add_output_options
from .output import Output


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-attack verify",
        allow_abbrev=False,
        description="Check every file of a run and of its attacks against the hashes that were "
        "recorded with them. Exit code 0: all are as recorded; 4: not all are.",
    )
    made.add_argument("run", metavar="RUN", help="a run's folder, or its name in --runs-dir")
    made.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR")
    made.add_argument(
        "--expect", metavar="SHA256", help="the SHA-256 of the run's manifest that was published"
    )
    made.add_argument(
        "--accept", action="store_true", help="cover the folder as it is now, if you trust it"
    )
    made.add_argument("--all", action="store_true", help="list unchanged files too")
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv)


def _run(options: argparse.Namespace, output: Output) -> int:
    from .commands import verify

    return verify.run(options, output)
