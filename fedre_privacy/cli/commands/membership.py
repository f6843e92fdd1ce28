"""``fedre-membership``: who trained, told from uploads of many federations that differ by coins."""

from __future__ import annotations

import argparse

from fedre_privacy.api import run_membership
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.units import human_seconds
from fedre_privacy.play.rehearse import rehearse
from fedre_privacy.play.worlds import WorldsPlan, plan_worlds
from fedre_privacy.runs.coins import Coins
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.resolving import check_sections, required, resolve_training
from fedre_privacy.runs.run import find_run

from ..output import Output
from .explain import explain
from .settled import gather, refuse_training_options


def _plan(options: argparse.Namespace) -> WorldsPlan:
    if options.run is not None:
        run = find_run(options.run, options.runs_dir)
        refuse_training_options(options, run)
        settings = run.settings
    else:
        values, where = gather(options)
        problems: list[str] = []
        check_sections(values, where, problems)
        settings = required(
            resolve_training(values, where, problems), problems, see="fedre-train --explain"
        )
    try:
        rates = tuple(float(text) for text in options.fpr.split(",") if text.strip())
    except ValueError:
        raise ConfigError(
            f"--fpr {options.fpr}: rates are numbers between 0 and 1, for example 0.01,0.001."
        ) from None
    if options.slots is not None and options.slots < 2:
        raise ConfigError(f"--slots is {options.slots}; it must be at least 2.")
    return plan_worlds(
        settings,
        worlds=options.worlds,
        coins=Coins(game=options.game, slots=options.slots, seed=options.coin_seed),
        rounds=options.attack_rounds,
        chosen=options.attack,
        rates=rates,
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Train worlds, attack them, and print who is at risk; return the exit code."""
    plan = _plan(options)
    if options.explain:
        explain(plan.training, None, output)
        return 0
    if options.dry_run:
        one = rehearse(plan.world(0), None, choose_device(options.device))
        folder = options.runs_dir / plan.folder_name
        output.line("Plan", f"{plan.worlds} worlds in {folder}")
        for heading, text in one.lines.items():
            output.line("One world" if heading == "Train" else heading, text)
        total = human_seconds(one.train_s * plan.worlds)
        output.line("All", f"about {total} to train; attacks come on top")
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
    output.line(
        "Files",
        f"{done.folder}/{{report.html,roc.png,exposed.png,guesses.csv,record.json}}",
        wrap=False,
    )
    output.final(done.folder, done.record())
    return 0
