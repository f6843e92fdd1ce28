"""``fedre-membership``: who trained, told from uploads of many federations that differ by coins."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.options import Constant, option_in, options_of
from fedre_privacy.runs.options import ISOLATION, WorldsOptions

from .browser import add_open_option, open_page
from .command import command
from .index import indexed_constant
from .options import add_common_options, add_options, add_training_options
from .output import Output

if TYPE_CHECKING:
    from fedre_privacy.experiments.shadow_federations import ShadowFederationPlan

COIN = Constant("fedre_privacy.runs.membership_game:COIN")
GAMES = Constant("fedre_privacy.runs.membership_game:GAMES")


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
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
    add_options(group, options_of(WorldsOptions))
    group.add_argument(
        "--game",
        default=indexed_constant(COIN),
        choices=indexed_constant(GAMES),
        help="coin: a sample trains or not; pair: one of two of a class does; null: a sample "
        "trains or is in no batch while it counts, for dp-sgd (default: coin)",
    )
    group.add_argument(
        "--slots",
        type=int,
        metavar="N",
        help="slots of each client at most; others train in every world (default: all)",
    )
    group.add_argument(
        "--attack-rounds",
        type=int,
        default=4,
        metavar="N",
        help="rounds whose uploads are looked at, evenly spread (default: 4)",
    )
    group.add_argument("--coin-seed", type=int, default=0, metavar="S", help="of slots and coins")
    add_options(group, {"isolation": option_in(ISOLATION)})
    add_open_option(group)
    add_training_options(made)
    add_common_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv)


def _plan(options: argparse.Namespace) -> ShadowFederationPlan:
    from fedre_privacy.experiments.shadow_federations import plan_shadow_federations
    from fedre_privacy.runs.membership_game import MembershipGame

    from .shared.settings import recorded_or_asked

    _, settings = recorded_or_asked(options, see="fedre-train --explain")
    try:
        rates = tuple(float(text) for text in options.fpr.split(",") if text.strip())
    except ValueError:
        raise ConfigError(
            f"--fpr {options.fpr}: rates are numbers between 0 and 1, for example 0.01,0.001."
        ) from None
    if options.slots is not None and options.slots < 2:
        raise ConfigError(f"--slots is {options.slots}; it must be at least 2.")
    return plan_shadow_federations(
        settings,
        worlds=options.worlds,
        coins=MembershipGame(game=options.game, slots=options.slots, seed=options.coin_seed),
        rounds=options.attack_rounds,
        chosen=options.attack,
        rates=rates,
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Train worlds, attack them, and print who is at risk; return the exit code."""
    from fedre_privacy.api import run_membership
    from fedre_privacy.experiments.dry_run import dry_run
    from fedre_privacy.runs.device import choose_device

    from .shared.explain import explain

    plan = _plan(options)
    if options.explain is not None:
        explain(plan.training, None, output, options.explain)
        return 0
    if options.dry_run:
        one = dry_run(plan.world(0), None, choose_device(options.device))
        folder = options.runs_dir / plan.folder_name
        output.line("Plan", f"{plan.worlds} worlds in {folder}")
        output.estimate(one, plan.worlds)
        output.line("Beside", "attacks come on top")
        output.final(None, {"plan": vars(one), "worlds": plan.worlds})
        return 0
    done = run_membership(
        plan,
        runs=options.runs_dir,
        device=choose_device(options.device),
        restart=options.restart,
        isolation=options.isolation,
        report=output,
    )
    for heading, text in done.lines().items():
        output.line(heading, text)
    output.text()
    output.line("RESULT", f"{done.played.coins.numel():,} guesses in {plan.worlds} worlds")
    output.table(done.table())
    output.text()
    output.line("Records", f"most at risk, by {' or '.join(done.plain)}")
    output.table(done.exposed())
    output.line("Verdict", done.verdict())
    output.line("Exposed", done.exposure())
    output.line(
        "Files",
        f"{done.folder}/{{report.html,roc.png,exposed.png,guesses.csv,record.json}}",
        wrap=False,
    )
    output.final(done.folder, done.record())
    if options.open:
        open_page(done.folder / "report.html", output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
