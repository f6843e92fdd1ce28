"""Options that the commands share, and how they become settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import shtab

from fedre_privacy import __version__
from fedre_privacy.core.config import load_yaml, parse_assignments
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.presets import preset
from fedre_privacy.runs.resolving import required, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TRAIN_SECTIONS
from fedre_privacy.runs.values import in_sections, layered, training_values


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Everything that decides a training run."""
    group = parser.add_argument_group("training")
    group.add_argument("--protocol", metavar="P", help="what clients upload (default: fedre)")
    group.add_argument(
        "--dataset",
        metavar="D[:PATH]",
        help="digits, photos (both built in), npz:FILE, imagefolder:DIR, tinyimagenet, cifar10, "
        "cifar100, fashion-mnist (default: digits)",
    )
    group.add_argument(
        "--data-dir", metavar="DIR", help="where the data set's files are"
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    group.add_argument(
        "--partition",
        metavar="NAME[:VALUE]",
        help="pra:ALPHA (Dirichlet), pat:CLASSES, classes:CLASSES (random ones), "
        "longtail:IMBALANCE, iid (default: pra:0.1)",
    )
    group.add_argument(
        "--models",
        metavar="M",
        help="architecture, family (het10, cnn5, ...) or comma list (default: cnn4)",
    )
    group.add_argument(
        "--scheme",
        metavar="S",
        help="entanglement scheme of fedre, a name or module:Class (default: rap)",
    )
    group.add_argument(
        "--defense",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="what clients do to their training or uploads, e.g. gaussian:clip=1,epsilon=8; "
        "repeatable, applied in order",
    )
    group.add_argument(
        "--steering",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="what a malicious server does, e.g. null-head:rounds=1; repeatable, applied in order "
        "(default: the server is honest)",
    )
    group.add_argument("--clients", type=int, metavar="N", help="number of clients (default: 10)")
    group.add_argument("--rounds", type=int, metavar="T", help="rounds (default: 20)")
    group.add_argument("--seed", type=int, metavar="N", help="seed of the training (default: 0)")
    group.add_argument(
        "--no-truth", action="store_true", help="do not keep what is needed to score attacks"
    )


def add_plugin_option(group: argparse._ActionsContainer) -> None:
    """Which modules of one's own the names in files may lead to."""
    group.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module of your own, so that names in files (runs, --config, sweeps) may "
        "lead to its parts; repeatable",
    )


def add_settings_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Where settings come from, where runs go, and on which device."""
    group = parser.add_argument_group("running")
    group.add_argument(
        "--preset",
        action="append",
        default=[],
        metavar="NAME|list",
        help="named settings, such as those of a published table; repeatable, later ones win, "
        "--config and options win over all",
    )
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="settings in YAML; options win"
    ).complete = shtab.FILE  # type: ignore[attr-defined]
    add_plugin_option(group)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assign",
        help="any setting, e.g. attack.steps=500; see --explain",
    )
    group.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of run folders (default: runs)",
    )
    group.add_argument(
        "--device", default="auto", metavar="D", help="auto, cpu, cuda or cuda:N (default: auto)"
    )
    shtab.add_argument_to(
        parser, "--print-completion", help="print a completion script of a shell, and stop"
    )
    return group


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """What is printed, and what only tells of the command itself."""
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object per event")
    output.add_argument("--quiet", action="store_true", help="print the final path only")
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s, fedre-privacy {__version__}"
    )


def add_common_options(parser: argparse.ArgumentParser, *, restart: str) -> None:
    """How to run and what to print.

    Args:
        restart: what ``--restart`` does, for the help.
    """
    group = add_settings_options(parser)
    group.add_argument("--resume", action="store_true", help="go on with what was interrupted")
    group.add_argument("--restart", action="store_true", help=restart)
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="all checks and one step of each loop; writes nothing",
    )
    group.add_argument(
        "--explain",
        action="store_true",
        help="describe the chosen parts and their settings, and stop",
    )
    add_output_options(parser)


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
        seed=options.seed, truth=False if options.no_truth else None,
        steering=options.steering,
    )  # fmt: skip
    return layered(
        {**(others or {}), **given},
        parse_assignments(options.assign),
        presets=options.preset,
        config=options.config,
    )


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
