"""``fedre-audit``: does what the defences let through keep what they promise?"""

from __future__ import annotations

import argparse
import math

from fedre_privacy.api import audit, run_training
from fedre_privacy.auditing.claims import REFUTED, check_audit
from fedre_privacy.auditing.recorded import plan_audit
from fedre_privacy.core.errors import RefutedError
from fedre_privacy.play.attack import require_complete
from fedre_privacy.runs.coins import Coins
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.resolving import check_sections, required, resolve_training
from fedre_privacy.runs.run import Run, find_run
from fedre_privacy.runs.settings import TrainSettings

from ..output import Output
from .explain import explain
from .settled import gather, refuse_training_options
from .train import print_run, rehearsed


def run(options: argparse.Namespace, output: Output) -> int:
    """Audit a run, or one that is trained here; return the exit code."""
    inside = options.level == "run"
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
    if options.level == "run" and settings.coins is None:
        each = math.ceil(options.canaries / settings.train.clients)
        coins = Coins(game=options.game, slots=max(each, 2), canary=options.canary)
        settings = settings.in_world(coins)
    return settings
