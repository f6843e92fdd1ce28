"""``fedre-train curves``: the accuracy of several recorded trainings in one figure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedre_privacy.core.declared import declared

from .options import add_output_options, add_plugin_option
from .output import Output, command


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    moments = declared("fedre_privacy.pages.run_curves", "MOMENTS")
    usual = declared("fedre_privacy.pages.run_curves", "HEADLINE")
    across = declared("fedre_privacy.pages.run_curves", "ACROSS")
    made = argparse.ArgumentParser(
        prog="fedre-train curves",
        allow_abbrev=False,
        description="Draw the accuracy of recorded trainings in one figure, and print their last "
        "and best rounds. Runs that differ in their seed alone are one line with a band.",
    )
    made.add_argument("run", nargs="+", metavar="RUN", help="folders of runs, or their names")
    made.add_argument(
        "--out", type=Path, default=Path("curves"), metavar="FILE",
        help="figure, as PNG and PDF, and its data as CSV (default: curves)",
    )  # fmt: skip
    made.add_argument(
        "--moment", choices=moments, default=usual,
        help="of evaluation (default: the one that each protocol quotes)",
    )  # fmt: skip
    made.add_argument(
        "--over",
        choices=tuple(across),
        default="round",
        help="the x axis (default: round)",
    )
    made.add_argument(
        "--target", type=float, metavar="A",
        help="accuracy, 0 to 1: print the rounds and the traffic until it is reached",
    )  # fmt: skip
    made.add_argument("--title", default="", metavar="TEXT", help="above the figure")
    made.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept"
    )
    add_plugin_option(made)
    add_output_options(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv)


def _run(options: argparse.Namespace, output: Output) -> int:
    from .commands import curves

    return curves.run(options, output)
