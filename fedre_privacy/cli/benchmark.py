"""``fedre-benchmark``: many trainings and attacks side by side, or a published table recomputed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedre_privacy.core.engines import JOBS
from fedre_privacy.core.registry import import_plugins

from . import claim, communication, leaderboard, repeat, toy
from .options import (
    add_output_options,
    add_settings_options,
    add_training_options,
)
from .output import Output, command

USAGE = (
    "fedre-benchmark [SWEEP.yaml] [options]\n"
    "       fedre-benchmark --scheme my_module:MyScheme --against rap,vap,rsr\n"
    "       fedre-benchmark --communication [options]\n"
    "       fedre-benchmark --toy [options]\n"
    "       fedre-benchmark claim FOLDER | verify FILE | leaderboard FOLDER [options]"
)
Main = Callable[[Sequence[str] | None], int]
TABLES: dict[str, tuple[Main, str]] = {
    "--communication": (
        communication.main,
        "published communication tables beside ours (--communication --help)",
    ),
    "--toy": (toy.main, "the plane of FedRE's Figure 2, over many seeds (--toy --help)"),
}
"""Options that ask for a published table instead: the command that recomputes it, and its help."""
PUBLISHED: dict[str, Main] = {
    "claim": claim.main,
    "verify": repeat.main,
    "leaderboard": leaderboard.main,
}
"""First words that ask for something else than a comparison."""


def _tables() -> argparse.ArgumentParser:
    """The options that ask for a published table instead of a comparison."""
    made = argparse.ArgumentParser(
        prog="fedre-benchmark", usage=USAGE, add_help=False, allow_abbrev=False
    )
    group = made.add_argument_group("published tables").add_mutually_exclusive_group()
    for option, (main, help) in TABLES.items():
        group.add_argument(option, dest="table", action="store_const", const=main, help=help)
    return made


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-benchmark",
        usage=USAGE,
        parents=[_tables()],
        allow_abbrev=False,
        description="Train protocols, schemes and defences over seeds, attack each, and print and "
        "draw leakage beside accuracy and communication. What is finished is not repeated.",
        epilog="fedre-benchmark claim FOLDER writes results into files that others can repeat, "
        "verify FILE repeats one, leaderboard FOLDER makes a page of them (each with --help).",
    )
    made.add_argument("sweep", nargs="?", type=Path, metavar="SWEEP.yaml", help="what to compare")
    group = made.add_argument_group("what to compare")
    group.add_argument("--protocols", metavar="P,Q", help="protocols, or all")
    group.add_argument("--schemes", metavar="S,T", help="entanglement schemes of fedre")
    group.add_argument("--against", metavar="S,T", help="with --scheme: schemes to compare it with")
    group.add_argument("--seeds", metavar="N,M", help="seeds (default: SWEEP.yaml's, or 0,1,2)")
    group.add_argument(
        "--attacks",
        metavar="A,B",
        default="default",
        help="attack, attack@target or attack@target@threat; default: those that fit the uploads",
    )
    group.add_argument("--targets", type=int, metavar="N", help="targets per attack")
    add_training_options(made)
    group = add_settings_options(made)
    group.add_argument("--out", type=Path, metavar="DIR", help="folder of the benchmark")
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="jobs at once (default: 1)")
    group.add_argument(
        "--engine",
        choices=tuple(JOBS),
        default="local",
        help="where jobs run (default: local)",
    )
    group.add_argument("--retry", action="store_true", help="run failed jobs again")
    group.add_argument(
        "--prune", action="store_true", help="remove models and uploads of finished runs"
    )
    group.add_argument("--dry-run", action="store_true", help="print the plan and an estimate")
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given and given[0] in PUBLISHED:
        return PUBLISHED[given[0]](given[1:])
    table: Main | None = _tables().parse_known_args(given)[0].table
    if table is not None:
        return table(given)
    return command(parser(), _run, given)


def _run(options: argparse.Namespace, output: Output) -> int:
    from . import lists

    import_plugins(options.plugin)
    if "list" in options.preset:
        return lists.list_presets(output)
    from .commands import benchmark

    return benchmark.run(options, output)


if __name__ == "__main__":
    sys.exit(main())
