"""Options that the commands share, and how they become settings."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from fedre_privacy.core.config import load_yaml, merge, parse_assignments
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.data.base import datasets
from fedre_privacy.partition.base import partitions
from fedre_privacy.presets import Preset, preset
from fedre_privacy.runs.settings import ATTACK_SECTIONS, set_defenses

from .explain import list_presets
from .output import Output


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
    group.add_argument("--data-dir", metavar="DIR", help="where the data set's files are")
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
    group.add_argument("--clients", type=int, metavar="N", help="number of clients (default: 10)")
    group.add_argument("--rounds", type=int, metavar="T", help="rounds (default: 20)")
    group.add_argument("--seed", type=int, metavar="N", help="seed of the training (default: 0)")
    group.add_argument(
        "--no-truth", action="store_true", help="do not keep what is needed to score attacks"
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
    group.add_argument("--config", type=Path, metavar="FILE", help="settings in YAML; options win")
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
    return group


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
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object per event")
    output.add_argument("--quiet", action="store_true", help="print the final path only")


def gather(
    options: argparse.Namespace, others: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Lay options over the settings file over presets; return values and where the file's keys are.

    Args:
        others: values of options that only one command has.

    Raises:
        ConfigError: an unknown preset, or one that has nothing to say on a recorded run.
        SystemExit: ``--preset list``, which has been answered.
    """
    layers = [chosen.values for chosen in _presets(options)]
    loaded = load_yaml(options.config) if options.config else None
    layers += [_text_keys(loaded.values)] if loaded else []
    given: dict[str, Any] = dict(others or {})

    def put(section: str, key: str, value: Any) -> None:
        if value is not None:
            given.setdefault(section, {})[key] = value

    put("protocol", "name", options.protocol)
    put("protocol", "entanglement", options.scheme)
    put("model", "name", options.models)
    put("train", "clients", options.clients)
    put("train", "rounds", options.rounds)
    put("train", "seed", options.seed)
    if options.defense:
        given["defense"] = options.defense
    if options.no_truth:
        put("record", "truth", False)
    if options.dataset is not None:
        name, _, path = options.dataset.partition(":")
        put("data", "name", name)
        put("data", "path", path or None)
    if options.data_dir is not None:
        put("data", "path", options.data_dir)
    if options.partition is not None:
        name, _, value = options.partition.partition(":")
        put("partition", "name", name)
        if value:
            known = name in partitions.names()
            put("partition", (partitions.get(name).shorthand if known else "") or "value", value)
    values: dict[str, Any] = {}
    for layer in (*layers, given, parse_assignments(options.assign)):
        for key, section in layer.items():
            nested = isinstance(section, Mapping)
            if key == "defense" and nested and "name" not in section and values.get(key):
                values[key] = set_defenses(values[key], section)
            else:
                values[key] = _over(key, values.get(key), section) if nested else section
    return _absolute(values), loaded.where if loaded else {}


def _presets(options: argparse.Namespace) -> list[Preset]:
    if "list" in options.preset:
        list_presets(Output(as_json=options.json, quiet=options.quiet))
        raise SystemExit(0)
    chosen = [preset(name) for name in options.preset]
    run = getattr(options, "run", None)
    idle = [one.name for one in chosen if not set(ATTACK_SECTIONS) & set(one.values)]
    if run not in (None, "list") and idle:
        raise ConfigError(
            f"--preset {', '.join(idle)} would train a new run, but the recorded run {run} was "
            "given.",
            next_step="Leave out one or the other.",
        )
    return chosen


def assigned(options: argparse.Namespace, sections: Collection[str]) -> list[str]:
    """Return the ``--set`` options that belong to some sections."""
    return [
        item for item in options.assign if item.strip().partition("=")[0].split(".")[0] in sections
    ]


def _text_keys(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Read every key as text: YAML takes a bare 5 for a number."""
    return {
        str(key): _text_keys(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


PLUGINS = ("data", "partition", "protocol", "attack", "defense")
"""Sections whose settings belong to the plugin that they name."""


def _over(key: str, old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a section over another; another plugin does not inherit the settings."""
    before = dict(old) if isinstance(old, Mapping) else ({"name": old} if old else {})
    if key in PLUGINS and "name" in new and before.get("name") not in (None, new["name"]):
        before = {}
    return merge(before, new)


def _absolute(values: dict[str, Any]) -> dict[str, Any]:
    """Make a data path absolute, so that the run can be attacked from any folder."""
    data = values.get("data")
    if not isinstance(data, Mapping) or not data.get("path"):
        return values
    name = data.get("name", "digits")
    if name in datasets.names() and "path" not in datasets.get(name).__dataclass_fields__:
        raise ConfigError(
            f"Data set '{name}' is built in and takes no path; got '{data['path']}'.",
            next_step="Leave --data-dir out, or choose --dataset npz:FILE or imagefolder:DIR.",
        )
    path = str(Path(str(data["path"])).expanduser().resolve())
    return {**values, "data": {**data, "path": path}}


def choose_device(name: str) -> torch.device:
    """Turn ``--device`` into a device that exists.

    Raises:
        ConfigError: unknown name, or no such GPU here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"Unknown device '{name}'. Use auto, cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"Device '{name}' is not supported. Use auto, cpu, cuda or cuda:N.")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            build = f"torch {torch.__version__} built for CUDA {torch.version.cuda or 'none'}"
            raise ConfigError(
                f"Device '{name}' was asked for; {build} sees {count} GPUs here.",
                next_step="Use --device cpu (add --dry-run for an estimate of the time it takes).",
            )
    return device
