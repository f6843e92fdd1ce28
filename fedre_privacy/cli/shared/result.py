"""What commands print of a training and of an attack."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import torch

from fedre_privacy.cli.browser import open_page
from fedre_privacy.cli.output import Output
from fedre_privacy.core.manifest import complete_manifest
from fedre_privacy.core.units import human_seconds
from fedre_privacy.experiments.attack import AttackResult
from fedre_privacy.experiments.dry_run import DryRunEstimate, dry_run
from fedre_privacy.runs.folder import begin
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import TrainSettings

MOMENTS = {
    "post_local": "after the last local training",
    "post_broadcast": "after the last broadcast",
}


def print_dry_run(
    settings: TrainSettings, options: argparse.Namespace, device: torch.device, output: Output
) -> DryRunEstimate:
    """Do every check of a training and one step of it, and print what it would do."""
    if not options.restart:
        folder = options.runs_dir / settings.run_name
        begin(folder, resume=options.resume, restart=False, what="Run")
    plan = dry_run(settings, None, device, options.runs_dir)
    output.estimate(plan)
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


def print_result(
    result: AttackResult,
    output: Output,
    *,
    of: Mapping[str, object],
    again: str,
    then: str = "",
    show_page: bool = False,
    every: bool = False,
    verbose: bool = False,
) -> None:
    """Print what was found, the result table, the files and what to do next.

    Args:
        of: what was attacked, for ``--json``.
        again: the command that repeats the attack.
        then: a command worth giving next, or empty.
        show_page: open the report in a browser.
        every: print every measure, not only those that the verdict rests on.
        verbose: every measure, and the hash of what was written.
    """
    trial, card = result.trial, result.card
    if "attack.reused" in output.reused:
        output.line("Note", "this attack was finished before and is read back (--restart repeats)")
    lost = f", {card.diverged} diverged" if card.diverged else ""
    lost += " and count as the worst floor" if lost and card.lost_rule else ""
    floors = f"; {public}" if (public := card.words.get("public images")) else ""
    output.text()
    for word, text in card.verdict.lines:
        output.line(word.upper(), text)
    for why in card.verdict.weakened:
        output.line("Weakened", why)
    output.line("RESULT", f"{card.n} of {card.targets} targets{lost}; {card.compared_with}{floors}")
    output.table(card.table(brief=not (every or verbose)))
    output.line(
        "Files",
        f"{result.folder}/{{report.html,figure.png,scores.csv,record.json}}   "
        f"took {human_seconds(result.record['wall_s'])}",
        wrap=False,
    )
    manifest = complete_manifest(result.folder).sha256
    if verbose:
        output.line("Manifest", manifest, wrap=False)
    output.line("Again", again, wrap=False)
    if then:
        output.line("Next", then, wrap=False)
    output.final(
        result.folder,
        {
            **of,
            "target": trial.kind,
            "counterfactual": trial.counterfactual,
            "verdict": card.verdict.word,
            "because": card.verdict.because,
            "n": card.n,
            "table": result.table(),
            "manifest": manifest,
        },
    )
    if show_page:
        open_page(result.folder / "report.html", output)
