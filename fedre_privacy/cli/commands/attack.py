"""``fedre-attack``: what do the uploads give away?"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import torch

from fedre_privacy.api import run_attack, run_training
from fedre_privacy.attacks.base import can_read
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.play.attack import AttackResult, require_complete
from fedre_privacy.play.rehearse import rehearse
from fedre_privacy.play.targets import KINDS
from fedre_privacy.play.usual import with_usual_attack
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.folder import COMPLETE, begin, status_of
from fedre_privacy.runs.resolving import check_sections, required, resolve_attack, resolve_training
from fedre_privacy.runs.run import Run, find_run
from fedre_privacy.runs.settings import TRAIN_SECTIONS, AttackSettings, TrainSettings
from fedre_privacy.runs.values import attack_values
from fedre_privacy.sealed.door import warm

from ..lists import list_all
from ..output import Output
from .explain import explain, list_for
from .foreign import refuse_without_uploads, run_foreign
from .result import print_result
from .settled import (
    TRAINING_OPTIONS,
    gather,
    refuse_training_options,
)
from .train import print_run


def run(options: argparse.Namespace, output: Output) -> int:
    """Attack a run, one that is trained here, or given uploads; return the exit code."""
    asked = attack_values(
        attack=options.attack, target=options.target, threat=options.threat,
        attacker=options.attacker, targets=options.targets, round=options.round,
        metrics=options.metrics,
    )  # fmt: skip
    values, where = gather(options, asked)
    if options.uploads is not None:
        return run_foreign(options, values, where, TRAINING_OPTIONS, output)
    refuse_without_uploads(options)
    recorded = None
    if options.run not in (None, "list"):
        recorded = find_run(options.run, options.runs_dir)
        refuse_training_options(options, recorded)
        values = {key: value for key, value in values.items() if key not in TRAIN_SECTIONS}
    problems: list[str] = []
    check_sections(values, where, problems)
    training = recorded.settings if recorded else resolve_training(values, where, problems)
    uploads = training.protocol.uploads if training else ()
    values = with_usual_attack(values, training, report=output)
    settings = resolve_attack(values, where, problems, uploads=uploads)
    training = required(training, problems, see="fedre-attack --explain")
    settings = required(settings, problems, see="fedre-attack --explain")
    if options.run == "list":
        if options.listed is None:
            return list_all(output)
        list_for(find_run(options.listed, options.runs_dir), settings.threat, output)
        return 0
    if options.explain:
        explain(training, settings, output)
        return 0
    device = choose_device(options.device)
    secrets = [options.runs_dir, *training.data.sources()]
    warm(options.isolation, device, recorded.secrets() if recorded else secrets)  # meanwhile
    if options.dry_run:
        _rehearse(recorded, training, settings, options, device, output)
        return 0
    how = {"device": device, "resume": options.resume, "restart": options.restart, "report": output}
    run = recorded or run_training(training, runs=options.runs_dir, attack=settings, **how)
    require_complete(run)
    print_run(run, output, trained_now=not recorded and "train.reused" not in output.reused)
    result = run_attack(run, settings, isolation=options.isolation, **how)
    print_result(
        result,
        output,
        of={"run": run.folder},
        again=_again(run, result.folder, options)
        + plugin_words([*run.settings.plugins(), *settings.plugins()]),
        then=f"fedre-attack {_quoted(run.folder)} {_next(result)}"
        + plugin_words(run.settings.plugins()),
        open_page=options.open,
        every=options.metrics is not None,
        verbose=options.verbose,
    )
    return 0


def _next(result: AttackResult) -> str:
    """Options of the attack worth giving next: what was sent, a stronger attacker, the ceiling."""
    trial = result.trial
    sent = {kind for u in trial.observation.uploads for kind in map(type, u.artifacts)}
    if trial.counterfactual and any(can_read(trial.settings.attack, kind) for kind in sent):
        return "--target uploaded"
    if not result.leaks and trial.kind in KINDS and trial.observation.threat.name != "strong":
        return f"--target {trial.kind} --threat strong"
    return f"--target {'representations' if trial.kind != 'representations' else 'prototypes'}"


def _rehearse(
    recorded: Run | None,
    training: TrainSettings,
    settings: AttackSettings,
    options: argparse.Namespace,
    device: torch.device,
    output: Output,
) -> None:
    folder = options.runs_dir / training.run_name
    if recorded is None and not options.restart:
        begin(folder, resume=options.resume, restart=False, what="Run")
    done = recorded or (Run(folder) if status_of(folder) == COMPLETE else None)
    if done is not None:
        require_complete(done)
        place = done.folder / "attacks" / settings.folder_name
        if not options.restart:
            begin(place, resume=options.resume, restart=False, what="Attack")
    plan = rehearse(done or training, settings, device, options.runs_dir)
    for heading, text in plan.lines.items():
        output.line(heading, text)
    output.final(None, {"plan": vars(plan)})


def _again(run: Run, folder: Path, options: argparse.Namespace) -> str:
    """The command that repeats an attack without training again."""
    config = folder / "config.yaml"
    command = f"fedre-attack --config {_quoted(config)}"
    if run.folder.resolve() != (options.runs_dir / run.settings.run_name).resolve():
        return f"fedre-attack {_quoted(run.folder)} --config {_quoted(config)}"
    if options.runs_dir != Path("runs"):
        command += f" --runs-dir {_quoted(options.runs_dir)}"
    return command


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
