"""``fedre-train curves``: the accuracy of several recorded trainings in one figure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedre_privacy.core.options import Constant

from .command import command
from .index import indexed_constant
from .options import add_output_options, add_plugin_option, add_runs_option
from .output import Output


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    moments, usual, across = (
        indexed_constant(Constant(f"fedre_privacy.reports.run_curves:{name}"))
        for name in ("MOMENTS", "HEADLINE", "ACROSS")
    )
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
        choices=across,
        default="round",
        help="the x axis (default: round)",
    )
    made.add_argument(
        "--target", type=float, metavar="A",
        help="accuracy, 0 to 1: print the rounds and the traffic until it is reached",
    )  # fmt: skip
    made.add_argument("--title", default="", metavar="TEXT", help="above the figure")
    add_runs_option(made)
    add_plugin_option(made)
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv)


def run(options: argparse.Namespace, output: Output) -> int:
    """Draw the accuracy of recorded trainings; return the exit code."""
    from fedre_privacy.reports.run_curves import compare
    from fedre_privacy.runs.run import find_run

    runs = [find_run(given, options.runs_dir) for given in options.run]
    found = compare(runs, options.moment)
    out = options.out.with_suffix("") if options.out.suffix in (".png", ".pdf") else options.out
    written = found.draw(out, across=options.over, target=options.target, title=options.title)
    output.table(found.table(options.target))
    output.line("Figure", str(written[0]), wrap=False)
    output.final(written[0], {"table": found.table(options.target), "files": written})
    return 0
