"""``fedre-audit``: does what the defences let through keep what they promise?"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from fedre_privacy.api import audit, run_training
from fedre_privacy.auditing.claims import REFUTED, check_audit
from fedre_privacy.auditing.recorded import plan_audit
from fedre_privacy.core.errors import RefutedError
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.defenses.base import CLIENT, RECORD
from fedre_privacy.eval.lower_bounds import ALPHA
from fedre_privacy.play.attack import require_complete
from fedre_privacy.runs.coins import CANARIES, PAIR, Coins
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.resolving import check_sections, required, resolve_training
from fedre_privacy.runs.run import Run, find_run
from fedre_privacy.runs.settings import TrainSettings

from .explain import explain, list_presets
from .options import add_common_options, add_training_options, gather, refuse_training_options
from .output import Output, command
from .train import print_run, rehearsed

LEVELS = ("mechanism", "run")


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
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
        "--unit", choices=(CLIENT, RECORD),
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
        "--canary", choices=CANARIES, default=CANARIES[0],
        help="with --level run: what they are (default: natural)",
    )  # fmt: skip
    group.add_argument(
        "--alpha", type=float, default=ALPHA, metavar="A",
        help=f"chance that the lower bound is above the truth (default: {ALPHA:g})",
    )  # fmt: skip
    group.add_argument("--audit-seed", type=int, default=0, metavar="S", help="seed of the coins")
    add_training_options(made)
    add_common_options(made, restart="remove the run of these settings and train it anew")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv)


def _run(options: argparse.Namespace, output: Output) -> int:
    import_plugins(options.plugin)
    if "list" in options.preset:
        return list_presets(output)
    inside = options.level == LEVELS[1]
    check_audit(options.canaries if inside else options.trials, options.alpha)
    recorded = None if options.run is None else find_run(options.run, options.runs_dir)
    settings = _settings(options, recorded)
    if options.explain:
        explain(settings, None, output)
        return 0
    if recorded is not None:
        require_complete(recorded)
    # Before training: a federation without a claim is not trained.
    plan = plan_audit(settings, options.unit, inside=inside)
    device = choose_device(options.device)
    if options.dry_run:
        output.line("Claim", plan.says())
        training = None if recorded else vars(rehearsed(settings, options, device, output))
        output.final(None, {"claim": plan.says(), "plan": training})
        return 0
    run = recorded or run_training(
        settings, runs=options.runs_dir, device=device, resume=options.resume,
        restart=options.restart, report=output,
    )  # fmt: skip
    print_run(run, output, trained_now=not recorded and "train.reused" not in output.reused)
    done = audit(
        run, unit=options.unit, inside=inside, trials=options.trials, alpha=options.alpha,
        seed=options.audit_seed,
    )  # fmt: skip
    for heading, text in done.lines().items():
        output.line(heading, text)
    output.text()
    output.line("RESULT", f"{done.found.trials} trials")
    output.table(done.table())
    output.line("Verdict", done.verdict())
    output.line("Files", f"{done.folder}/{{report.html,epsilon.png,record.json}}", wrap=False)
    output.final(done.folder, done.record())
    if done.found.verdict == REFUTED:
        raise RefutedError(
            f"The claim of {run.name} is refuted: {done.verdict()}.",
            next_step="Look at what the defence adds, bounds and counts before you rely on it.",
        )
    return 0


def _settings(options: argparse.Namespace, recorded: Run | None) -> TrainSettings:
    """Those of the recorded run, or those that the options make."""
    if recorded is not None:
        refuse_training_options(options, recorded)
        return recorded.settings
    values, where = gather(options)
    problems: list[str] = []
    check_sections(values, where, problems)
    resolved = resolve_training(values, where, problems)
    settings = required(resolved, problems, see="fedre-audit --explain")
    if options.level == LEVELS[1] and settings.coins is None:
        each = math.ceil(options.canaries / settings.train.clients)
        settings = settings.in_world(Coins(game=PAIR, slots=max(each, 2), canary=options.canary))
    return settings


if __name__ == "__main__":
    sys.exit(main())
