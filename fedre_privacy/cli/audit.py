"""``fedre-audit``: does what the defences let through keep what they promise?"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from fedre_privacy.core.errors import RefutedError
from fedre_privacy.core.options import Constant, options_of
from fedre_privacy.runs.options import AuditOptions

from .browser import add_open_option, open_page
from .command import command
from .index import indexed_constant
from .options import add_common_options, add_options, add_training_options
from .output import Output

LEVELS = ("mechanism", "crowd", "run")


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    games = indexed_constant(Constant("fedre_privacy.runs.membership_game:GAMES"))[
        1:
    ]  # those that leave counts alone
    canaries = indexed_constant(Constant("fedre_privacy.runs.membership_game:CANARIES"))
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
    add_options(group, options_of(AuditOptions))
    group.add_argument(
        "--level", choices=LEVELS, default=LEVELS[0],
        help="mechanism: the defences alone; crowd: private training with and without one of many "
        "equal records, which shows what sums are divided by; run: canaries inside one "
        "federation, which tests a record's claim or shows what one would have to exceed "
        "(default: mechanism)",
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
    add_open_option(group)
    add_training_options(made)
    add_common_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv)


def run(options: argparse.Namespace, output: Output) -> int:
    """Audit a run, or one that is trained here; return the exit code."""
    from fedre_privacy.api import audit, run_training
    from fedre_privacy.auditing.claims import REFUTED, check_audit
    from fedre_privacy.auditing.recorded_run import plan_audit
    from fedre_privacy.experiments.attack import require_complete
    from fedre_privacy.runs.device import choose_device
    from fedre_privacy.runs.membership_game import MembershipGame

    from .shared.explain import explain
    from .shared.result import print_dry_run, print_run
    from .shared.settings import recorded_or_asked

    inside, crowd = options.level == "run", options.level == "crowd"
    check_audit(options.canaries if inside else options.trials, options.alpha)
    recorded, settings = recorded_or_asked(options, see="fedre-audit --explain")
    if recorded is None and inside and settings.coins is None:
        each = math.ceil(options.canaries / settings.train.clients)
        coins = MembershipGame(game=options.game, slots=max(each, 2), canary=options.canary)
        settings = settings.in_world(coins)
    if options.explain is not None:
        explain(settings, None, output, options.explain)
        return 0
    if recorded is not None:
        require_complete(recorded)
    # Before training: a federation without a claim is not trained.
    plan = plan_audit(settings, options.unit, inside=inside, crowd=crowd)
    device = choose_device(options.device)
    if options.dry_run:
        output.line("Claim", plan.says())
        training = None if recorded else vars(print_dry_run(settings, options, device, output))
        output.final(None, {"claim": plan.says(), "plan": training})
        return 0
    run = recorded or run_training(
        settings, runs=options.runs_dir, device=device, resume=options.resume,
        restart=options.restart, report=output,
    )  # fmt: skip
    print_run(run, output, trained_now=not recorded and "train.reused" not in output.reused)
    done = audit(
        run, unit=options.unit, inside=inside, crowd=crowd, trials=options.trials,
        alpha=options.alpha, seed=options.audit_seed,
    )  # fmt: skip
    for heading, text in done.lines().items():
        output.line(heading, text)
    output.text()
    output.line("RESULT", f"{done.found.trials} trials")
    output.table(done.table())
    output.line("Verdict", done.verdict())
    output.line("Files", f"{done.folder}/{{report.html,epsilon.png,record.json}}", wrap=False)
    output.final(done.folder, done.record())
    if options.open:
        open_page(done.folder / "report.html", output)
    if done.found.verdict == REFUTED:
        raise RefutedError(
            f"The claim of {run.name} is refuted: {done.verdict()}.",
            next_step="Look at what the defence adds, bounds and counts before you rely on it.",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
