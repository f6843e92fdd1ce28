"""``fedre-benchmark --toy``: the plane of FedRE's Figure 2, over many seeds."""

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
        prog="fedre-benchmark",
        usage="fedre-benchmark --toy [options]",
        allow_abbrev=False,
        description="Train FedRE, FedGH, FedAllRep and local training on points in the plane over "
        "many seeds; print accuracies with intervals and draw the decision boundaries.",
    )
    made.add_argument("--toy", action="store_true", help="run this experiment")
    made.add_argument(
        "--out",
        type=Path,
        default=Path("runs/toy"),
        metavar="DIR",
        help="folder of the figure and tables (default: runs/toy)",
    )
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assign",
        help="a setting of the toy, for example seeds=40 or rounds=60",
    )
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv, folder="out")


def _run(options: argparse.Namespace, output: Output) -> int:
    from .commands import toy

    return toy.run(options, output)
