"""How options become settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from fedre_privacy.core.config import load_yaml, parse_assignments
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.secrets import chosen_secret
from fedre_privacy.presets import preset
from fedre_privacy.runs.resolving import required, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TRAIN_SECTIONS
from fedre_privacy.runs.values import in_sections, layered, training_values


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
    given = training_values(
        protocol=options.protocol, scheme=options.scheme, dataset=options.dataset,
        data_dir=options.data_dir, partition=options.partition, models=options.models,
        defense=options.defense, clients=options.clients, rounds=options.rounds,
        seed=options.seed, secret=_secret(options), truth=False if options.no_truth else None,
        steering=options.steering,
    )  # fmt: skip
    return layered(
        {**(others or {}), **given},
        parse_assignments(options.assign),
        presets=options.preset,
        config=options.config,
    )


def _secret(options: argparse.Namespace) -> str | None:
    """The fingerprint of the secret that is asked for, drawn or read once for a command."""
    if options.secret is not None and not hasattr(options, "secret_name"):
        options.secret_name = chosen_secret(options.secret)
    return getattr(options, "secret_name", None)


def assigned(options: argparse.Namespace, sections: Sequence[str]) -> list[str]:
    """Return the ``--set`` options that belong to some sections."""
    return in_sections(options.assign, sections)


TRAINING_OPTIONS = (
    "protocol",
    "dataset",
    "data_dir",
    "partition",
    "models",
    "scheme",
    "clients",
    "rounds",
    "seed",
    "secret",
)


def refuse_training_options(options: argparse.Namespace, run: Run) -> None:
    """A recorded run is what it is: options that would change its training are refused."""
    given = [
        f"--{name.replace('_', '-')}"
        for name in TRAINING_OPTIONS
        if getattr(options, name) is not None
    ]
    given += ["--no-truth"] if options.no_truth else []
    given += [f"--steering {one}" for one in options.steering]
    given += [f"--set {item}" for item in assigned(options, TRAIN_SECTIONS)]
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
    settings = required(resolve_training(sections, where, problems), problems)
    return settings.plain() != run.settings.plain()
