"""``fedre-membership``: who trained, told from uploads of many federations that differ by coins."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedre_privacy.core.declared import declared

from .options import add_common_options, add_training_options
from .output import Output, command


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    attacks = declared("fedre_privacy.play.worlds", "DEFAULT")
    games = declared("fedre_privacy.runs.coins", "GAMES")
    usual = declared("fedre_privacy.sealed.door", "AUTO")
    made = argparse.ArgumentParser(
        prog="fedre-membership",
        usage="fedre-membership [RUN] [options]",
        allow_abbrev=False,
        description="Train shadow federations in which samples are in or out by fair coins, and "
        "tell from each one's uploads who trained.",
    )
    made.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="take the settings of a recorded run; without it, those of the options",
    )
    group = made.add_argument_group("worlds")
    group.add_argument(
        "--worlds", type=int, default=16, metavar="W",
        help="federations to train; each is attacked with the others as shadows (default: 16)",
    )  # fmt: skip
    group.add_argument(
        "--game", default=declared("fedre_privacy.runs.coins", "COIN"), choices=games,
        help="coin: a sample trains or not; pair: one of two of a class does; null: a sample "
        "trains or is in no batch while it counts, for dp-sgd (default: coin)",
    )  # fmt: skip
    group.add_argument(
        "--slots", type=int, metavar="N",
        help="slots of each client at most; others train in every world (default: all)",
    )  # fmt: skip
    group.add_argument(
        "--attack-rounds", type=int, default=4, metavar="N",
        help="rounds whose uploads are looked at, evenly spread (default: 4)",
    )  # fmt: skip
    group.add_argument(
        "--attack", action="append", default=[], metavar="NAME[:KEY=VALUE,...]",
        help=f"attack on signals of worlds; repeatable (default: {', '.join(attacks)})",
    )  # fmt: skip
    group.add_argument(
        "--fpr", default="", metavar="F,F",
        help="rates of false alarms to be shown; refused where they cannot be "
        "(default: 0.01,0.001, with a reason where one cannot)",
    )  # fmt: skip
    group.add_argument("--coin-seed", type=int, default=0, metavar="S", help="of slots and coins")
    group.add_argument(
        "--isolation",
        default=usual,
        choices=declared("fedre_privacy.sealed.door", "ISOLATION"),
        help=f"of attacks (default: {usual})",
    )
    add_training_options(made)
    add_common_options(made, restart="train all worlds of these settings anew")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv)


def _run(options: argparse.Namespace, output: Output) -> int:
    from . import lists

    if "list" in options.preset:
        return lists.list_presets(output)
    from .commands import membership

    return membership.run(options, output)


if __name__ == "__main__":
    sys.exit(main())
