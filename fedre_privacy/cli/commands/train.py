"""``fedre-train``: train a federation and record everything it exchanges."""

from __future__ import annotations

import argparse
import shlex

import torch

from fedre_privacy.api import run_training
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.core.units import human_seconds
from fedre_privacy.pages.run_figures import draw
from fedre_privacy.play.rehearse import Plan, rehearse
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.folder import begin
from fedre_privacy.runs.resolving import check_sections, required, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TrainSettings

from ..output import Output
from .explain import explain
from .settled import assigned, gather

MOMENTS = {
    "post_local": "after the last local training",
    "post_broadcast": "after the last broadcast",
}


def run(options: argparse.Namespace, output: Output) -> int:
    """Train a federation, or say what training it would do; return the exit code."""
    values, where = gather(options)
    problems = [
        f"--set {item} is a setting of fedre-attack; fedre-train only trains."
        for item in assigned(options, ATTACK_SECTIONS)
    ]
    check_sections(values, where, problems)
    resolved = resolve_training(values, where, problems)
    settings = required(resolved, problems, see="fedre-train --explain")
    if options.explain:
        explain(settings, None, output)
        return 0
    device = choose_device(options.device)
    if options.dry_run:
        plan = rehearsed(settings, options, device, output)
        output.final(None, {"plan": vars(plan)})
        return 0
    run = run_training(
        settings,
        runs=options.runs_dir,
        device=device,
        resume=options.resume,
        restart=options.restart,
        report=output,
        engine=options.engine,
    )
    print_run(run, output, trained_now="train.reused" not in output.reused)
    best = run.best_round()
    if best is not None and best[0] != settings.train.rounds:
        output.line(
            "Best round",
            f"{best[0]}, with accuracy {best[1]:.3f} (chosen on the test images, so it flatters)",
        )
    pictures = draw(run)
    if pictures:
        names = ",".join(path.stem for path in pictures)
        output.line("Figures", f"{run.folder}/{{{names}}}.png", wrap=False)
    again = f"fedre-attack {shlex.quote(str(run.folder))}{plugin_words(settings.plugins())}"
    output.line("Manifest", run.manifest.sha256, wrap=False)
    output.line("Next", again, wrap=False)
    output.final(
        run.folder,
        {"final": run.record["final"], "figures": pictures, "manifest": run.manifest.sha256},
    )
    return 0


def rehearsed(
    settings: TrainSettings, options: argparse.Namespace, device: torch.device, output: Output
) -> Plan:
    """Do every check of a training and one step of it, and print what it would do."""
    if not options.restart:
        folder = options.runs_dir / settings.run_name
        begin(folder, resume=options.resume, restart=False, what="Run")
    plan = rehearse(settings, None, device, options.runs_dir)
    for heading, text in plan.lines.items():
        output.line(heading, text)
    return plan


def print_run(run: Run, output: Output, *, trained_now: bool) -> None:
    """Print one line about a trained run, and the facts that belong beside its numbers."""
    record = run.record
    moment = run.settings.protocol.headline
    accuracy, spread = record["final"][f"acc_{moment}"], record["final"][f"acc_{moment}_sd"]
    when = "trained now" if trained_now else "trained before"
    shared = record["final"].get(f"acc_shared_{moment}")
    beside = "" if shared is None else f" ({shared:.3f} on the shared test set of all classes)"
    output.line(
        "Run",
        f"{run.name} ({when}, {human_seconds(record['wall_s'])}): {record['summary']}   "
        f"accuracy {accuracy:.3f} +- {spread:.3f} {MOMENTS.get(moment, moment)}{beside}",
    )
    for note in record["data_notes"]:
        output.line("Note", note)
    output.event(
        "run",
        {
            "folder": run.folder,
            "trained_now": trained_now,
            "summary": record["summary"],
            "accuracy": accuracy,
            "accuracy_sd": spread,
            "notes": record["data_notes"],
        },
    )
