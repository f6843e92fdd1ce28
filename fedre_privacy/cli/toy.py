"""``fedre-benchmark --toy``: the plane of FedRE's Figure 2, over many seeds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedre_privacy.core.errors import ConfigError

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
    return command(parser(), run, argv, folder="out")


def run(options: argparse.Namespace, output: Output) -> int:
    """Train on points in the plane, and print and draw the means; return the exit code."""
    from fedre_privacy.core.config import build, parse_assignments
    from fedre_privacy.reproduction.toy import ToySettings, run_toy, write_toy

    problems: list[str] = []
    settings = build(ToySettings, parse_assignments(options.assign), at="toy", problems=problems)
    if settings is None:
        raise ConfigError(*problems, next_step="See docs/toy.md for every setting.")
    result = run_toy(settings)
    written = write_toy(result, options.out)
    for frame in (result.means, result.differences):
        rows = [
            {str(k): f"{v:.3f}" if isinstance(v, float) else str(v) for k, v in row.items()}
            for row in frame.to_dict("records")
        ]
        output.table(rows)
        output.text()
    output.line("Files", ", ".join(path.name for path in written) + f" in {options.out}")
    output.final(options.out, {"means": result.means.to_dict("records")})
    return 0
