"""``fedre-benchmark``: published tables, recomputed side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedre_privacy.reproduction.published_tables import DATA_SETS

from .command import command
from .options import add_output_options, add_plugin_option
from .output import Output


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-benchmark",
        usage="fedre-benchmark --communication [options]",
        allow_abbrev=False,
        description="Print published tables beside the same numbers recomputed here.",
    )
    made.add_argument(
        "--communication",
        action="store_true",
        help="scalars and bytes of one round: Tables 2, 4 and 11 of FedRE, Table 4 of FedRAL",
    )
    group = made.add_argument_group("communication")
    group.add_argument(
        "--dataset",
        nargs="+",
        metavar="D",
        help=f"data sets of Table 11 to print: {', '.join(DATA_SETS)} (default: all)",
    )
    labels = group.add_mutually_exclusive_group()
    labels.add_argument(
        "--labels",
        type=Path,
        metavar="FILE.npy",
        help="CIFAR-10's 60,000 labels, training then test part (default: class sizes alone, "
        "which give the same counts)",
    )
    labels.add_argument("--data-dir", metavar="DIR", help="take them from CIFAR-10's files in DIR")
    group.add_argument(
        "--measured",
        nargs="+",
        default=[],
        type=Path,
        metavar="RUN",
        help="recorded runs, by folder or by name in --runs-dir, whose traffic to show as well",
    )
    group.add_argument("--csv", type=Path, metavar="FILE", help="write the cells of Table 11")
    group.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of run folders (default: runs)",
    )
    add_plugin_option(group)
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv)


def _run(options: argparse.Namespace, output: Output) -> int:
    from .commands import communication

    return communication.run(options, output)


if __name__ == "__main__":
    sys.exit(main())
