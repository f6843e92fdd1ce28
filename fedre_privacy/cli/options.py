"""Options as a parser takes them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import shtab

from fedre_privacy import __version__
from fedre_privacy.core.options import Option, option_in, options_of
from fedre_privacy.runs.options import (
    PRESET,
    RUNS,
    SET,
    TRAINING,
    LogOptions,
    PlaceOptions,
    UnfinishedOptions,
)

from .index import indexed_constant


def add_options(group: argparse._ActionsContainer, options: Mapping[str, Option]) -> None:
    """Add declared options; those that only functions take are left out."""
    for name, option in options.items():
        flag = option.flag or f"--{name.replace('_', '-')}"
        if flag == "-":
            continue
        parse: dict[str, Any] = {
            "help": option.text(indexed_constant),
            "default": indexed_constant(option.default),
        }
        if option.metavar:
            parse["metavar"] = option.metavar
        if option.choices:
            choices = option.choices
            parse["choices"] = list(choices()) if callable(choices) else indexed_constant(choices)
        parse |= {key: indexed_constant(value) for key, value in option.parse.items()}
        if parse.get("type") is Path and parse["default"] is not None:
            parse["default"] = Path(parse["default"])
        if parse.get("action") == "append":
            parse["default"] = []
        action = group.add_argument(flag, **parse)
        if option.metavar == "DIR" and "type" not in parse:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Everything that decides a training run."""
    add_options(parser.add_argument_group("training"), TRAINING)


def add_runs_option(group: argparse._ActionsContainer) -> None:
    """Where run folders are."""
    add_options(group, {"runs": option_in(RUNS)})


def add_log_option(group: argparse._ActionsContainer) -> None:
    """Which experiment trackers hear of the work."""
    add_options(group, options_of(LogOptions))


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
    add_options(group, {"preset": option_in(PRESET)})
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="settings in YAML; options win"
    ).complete = shtab.FILE  # type: ignore[attr-defined]
    add_plugin_option(group)
    add_options(group, {"set": option_in(SET), "runs": option_in(RUNS)})
    add_options(group, options_of(PlaceOptions))
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


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """How to run and what to print."""
    group = add_settings_options(parser)
    add_options(group, options_of(UnfinishedOptions))
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="all checks and one step of each loop; writes nothing",
    )
    group.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="WORD",
        help="describe the chosen parts and their settings, and stop; with a WORD only settings "
        "whose name or meaning holds it",
    )
    add_output_options(parser)
