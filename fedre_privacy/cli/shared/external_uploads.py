"""``fedre-attack --uploads``: what do somebody else's uploads give away?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from fedre_privacy.api import attack_numbers
from fedre_privacy.cli.output import Output
from fedre_privacy.cli.shared.settings import settings_in_sections, training_given
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.experiments.attack import attack_into
from fedre_privacy.experiments.external_recording import (
    ExternalRecording,
    external_folder,
    read_external_uploads,
)
from fedre_privacy.experiments.external_trial import normalising_as, prepare_external
from fedre_privacy.loggers.base import LoggedWork, logging_work
from fedre_privacy.reports.attack import attack_page
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.settings import TRAIN_SECTIONS

from .result import print_result

OPTIONS = (
    "uploads", "image_shape", "extractor", "weights", "network", "classes", "aux", "truth",
)  # fmt: skip
MODULES = ("extractor", "weights", "network")


def refuse_without_uploads(options: argparse.Namespace) -> None:
    """Options of other systems' uploads go with ``--uploads``.

    Raises:
        ConfigError: one was given without it.
    """
    given = [n for n in OPTIONS if getattr(options, n) is not None]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{names} goes with --uploads: the uploads of another system.")


def attack_external_uploads(
    options: argparse.Namespace,
    values: Mapping[str, Any],
    where: Mapping[str, str],
    output: Output,
) -> int:
    """Attack another system's uploads; return the exit code.

    Raises:
        FedreError: anything missing, wrong, or not supported, before any step is taken.
    """
    problems = [] if options.image_shape else ["--image-shape is needed with --uploads."]
    given = [name for name in MODULES if getattr(options, name) is not None]
    if given not in (["extractor", "weights"], ["network"]):
        got = ", ".join(f"--{name}" for name in given) or "neither"
        problems.append(
            "With --uploads goes --extractor with --weights (representations, prototypes), or "
            f"--network (gradients, updates); got {got}."
        )
    problems += [
        f"{given} would train a run; --uploads are recorded already."
        for given in training_given(options)
    ]
    problems += [
        f"--set {item} is of a training." for item in settings_in_sections(options, TRAIN_SECTIONS)
    ]
    if options.run is not None:
        problems.append(f"Give RUN or --uploads, not both; got {options.run}.")
    shape = (1, 1, 1)
    if options.image_shape is not None:
        parts = options.image_shape.lower().split("x")
        if len(parts) == 3 and all(part.isdigit() and int(part) > 0 for part in parts):
            shape = (int(parts[0]), int(parts[1]), int(parts[2]))
        else:
            problems.append(f"--image-shape is CxHxW, e.g. 3x32x32; got '{options.image_shape}'.")
    if options.config is not None:
        loaded = load_yaml(options.config).values
        values = {k: v for k, v in values.items() if k not in loaded or k not in OPTIONS}
    settings = resolve_attack(values, where, problems)
    if problems or settings is None:
        raise ConfigError(*problems, next_step="See fedre-attack --help.")
    recorded = ExternalRecording(
        options.uploads, shape, options.extractor, options.weights, options.network,
        options.classes, options.aux, options.truth,
    )  # fmt: skip
    device = choose_device(options.device)
    evaluation = settings.evaluation
    recording = read_external_uploads(recorded, evaluation.round, evaluation.per_update)
    settings = normalising_as(recording, settings)
    trial = prepare_external(recording, settings)
    if options.dry_run:
        for heading, text in trial.lines().items():
            output.line(heading, text)
        output.line("Attack", f"{settings.attack.name}: everything fits; nothing was attacked")
        output.final(None, {"checked": True})
        return 0
    folder = external_folder(recorded, settings, trial, options.runs_dir)
    work = LoggedWork("attack", folder.name, settings.plain(), options.runs_dir)
    with logging_work(options.log, work, output) as report:
        result = attack_into(
            folder,
            settings,
            lambda: trial,
            device=device,
            resume=options.resume,
            restart=options.restart,
            report=report,
            isolation=options.isolation,
        )
        report.summarise(attack_numbers(result))
    attack_page(result)
    command, _ = trial.run.repeat(settings, result.folder)
    print_result(
        result, output, of={"uploads": recorded.uploads}, again=command,
        show_page=options.open, every=options.metrics is not None, verbose=options.verbose,
    )  # fmt: skip
    return 0
