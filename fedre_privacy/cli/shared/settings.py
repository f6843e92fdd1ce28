"""How options become settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from fedre_privacy.core.config import load_yaml, parse_assignments
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.presets import preset
from fedre_privacy.runs.options import TRAINING
from fedre_privacy.runs.plain_settings import in_sections, layer_settings, training_values
from fedre_privacy.runs.resolution import check_sections, require_resolved, resolve_training
from fedre_privacy.runs.run import Run, find_run
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TRAIN_SECTIONS, TrainSettings


def gather(
    options: argparse.Namespace, others: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Lay options over the settings file over presets; return values and where the file's keys are.

    Args:
        others: values of options that only one command has.

    Raises:
        ConfigError: an unknown preset, or one that has nothing to say on a recorded run.
    """
    idle = [n for n in options.preset if not set(ATTACK_SECTIONS) & set(preset(n).values)]
    run = getattr(options, "run", None)
    if run not in (None, "list") and idle:
        raise ConfigError(
            f"--preset {', '.join(idle)} would train a new run, but the recorded run {run} was "
            "given.",
            next_step="Leave out one or the other.",
        )
    given = training_values(**{name: getattr(options, name) for name in TRAINING})
    return layer_settings(
        {**(others or {}), **given},
        parse_assignments(options.assign),
        presets=options.preset,
        config=options.config,
    )


def training_settings(
    options: argparse.Namespace, problems: Sequence[str] = (), *, see: str
) -> TrainSettings:
    """Settings of the training that options ask for.

    Args:
        problems: found before; they are reported with the rest.
        see: the command that lists all settings.

    Raises:
        ConfigError: all problems.
    """
    values, where = gather(options)
    found = list(problems)
    check_sections(values, where, found)
    return require_resolved(resolve_training(values, where, found), found, see=see)


def recorded_or_asked(options: argparse.Namespace, *, see: str) -> tuple[Run | None, TrainSettings]:
    """The recorded run that is named and its settings, or None and those that options ask for.

    Args:
        see: the command that lists all settings.

    Raises:
        ConfigError: options of a training beside a recorded run, or wrong ones.
    """
    if options.run is None:
        return None, training_settings(options, see=see)
    run = find_run(options.run, options.runs_dir)
    refuse_training_options(options, run)
    return run, run.settings


def settings_in_sections(options: argparse.Namespace, sections: Sequence[str]) -> list[str]:
    """Return the ``--set`` options that belong to some sections."""
    return in_sections(options.assign, sections)


def training_given(options: argparse.Namespace) -> list[str]:
    """Return the options of a training that were given, as they are typed."""
    words = []
    for name, option in TRAINING.items():
        value, flag = getattr(options, name), option.flag or f"--{name.replace('_', '-')}"
        several = value if isinstance(value, list) else []
        words += [f"{flag} {one}" for one in several]
        words += [flag] if value is not None and not isinstance(value, list) else []
    return words


def refuse_training_options(options: argparse.Namespace, run: Run) -> None:
    """A recorded run is what it is: options that would change its training are refused."""
    given = training_given(options)
    given += [f"--set {item}" for item in settings_in_sections(options, TRAIN_SECTIONS)]
    if options.config:
        loaded = load_yaml(options.config)
        sections = {key: loaded.values[key] for key in TRAIN_SECTIONS if key in loaded.values}
        if sections and _differs(sections, loaded.where, run):
            given.append(f"{', '.join(sections)} in {options.config}")
    if given:
        raise ConfigError(
            f"{', '.join(given)} would train a new run, but the recorded run {options.run} was "
            "given.",
            next_step="Leave out one or the other.",
        )


def _differs(sections: Mapping[str, Any], where: Mapping[str, str], run: Run) -> bool:
    problems: list[str] = []
    settings = require_resolved(resolve_training(sections, where, problems), problems)
    return settings.plain() != run.settings.plain()
