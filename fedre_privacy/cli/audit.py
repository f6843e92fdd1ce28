"""``fedre-audit``: does what the defences let through keep what they promise?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedre_privacy.core.declared import declared
from fedre_privacy.core.registry import import_plugins

from .options import add_common_options, add_training_options
from .output import Output, command

LEVELS = ("mechanism", "run")


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    units = (
        declared("fedre_privacy.defenses.base", "CLIENT"),
        declared("fedre_privacy.defenses.base", "RECORD"),
    )
    games = declared("fedre_privacy.runs.coins", "GAMES")[1:]  # those that leave counts alone
    canaries = declared("fedre_privacy.runs.coins", "CANARIES")
    alpha = declared("fedre_privacy.eval.lower_bounds", "ALPHA")
    made = argparse.ArgumentParser(
        prog="fedre-audit",
        usage="fedre-audit [RUN] [options]",
        allow_abbrev=False,
        description="Test the privacy that a run's defences claim: crafted uploads, or crafted "
        "records, go through the defences, and right guesses bound epsilon from below.",
    )
    made.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a recorded run's folder, or its name in --runs-dir; without it, one is trained",
    )
    group = made.add_argument_group("audit")
    group.add_argument(
        "--unit", choices=units,
        help="whose claim to test (default: a client's where there is one, else a record's)",
    )  # fmt: skip
    group.add_argument(
        "--trials", type=int, default=1000, metavar="N",
        help="canary clients or canary records (default: 1000)",
    )  # fmt: skip
    group.add_argument(
        "--level", choices=LEVELS, default=LEVELS[0],
        help="mechanism: the defences alone; run: canaries inside one federation, which tests a "
        "record's claim or shows what one would have to exceed (default: mechanism)",
    )  # fmt: skip
    group.add_argument(
        "--canaries", type=int, default=1000, metavar="N",
        help="with --level run: pairs of samples that a coin is tossed about (default: 1000)",
    )  # fmt: skip
    group.add_argument(
        "--game", choices=games, default=games[0],
        help="with --level run: pair: one of two samples trains; null: a sample trains or is in no "
        "batch, for dp-sgd alone, whose promise speaks of just that (default: pair)",
    )  # fmt: skip
    group.add_argument(
        "--canary", choices=canaries, default=canaries[0],
        help="with --level run: what they are (default: natural)",
    )  # fmt: skip
    group.add_argument(
        "--alpha", type=float, default=alpha, metavar="A",
        help=f"chance that the lower bound is above the truth (default: {alpha:g})",
    )  # fmt: skip
    group.add_argument("--audit-seed", type=int, default=0, metavar="S", help="seed of the coins")
    add_training_options(made)
    add_common_options(made, restart="remove the run of these settings and train it anew")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv)


def _run(options: argparse.Namespace, output: Output) -> int:
    from . import lists

    import_plugins(options.plugin)
    if "list" in options.preset:
        return lists.list_presets(output)
    from .commands import audit

    return audit.run(options, output)


if __name__ == "__main__":
    sys.exit(main())
