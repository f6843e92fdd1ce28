"""Settings as plain values: what presets, a file, arguments and options say, in this order.

Parts are given by name, by name and settings, or as objects. `plain_value` writes an object out, so
that an object and its name take the same way: the same checks, and the same names of folders.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedre_privacy.active_server.base import Steering, steerings
from fedre_privacy.attacks.base import Attack, attacks
from fedre_privacy.core.config import LoadedYaml, load_yaml, merge, nest_setting, plain
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.options import Option
from fedre_privacy.core.registry import Registry, allow_module_paths, import_plugin
from fedre_privacy.core.secrets import chosen_secret
from fedre_privacy.core.types import ThreatModel
from fedre_privacy.data.base import Dataset, datasets
from fedre_privacy.defenses.base import Defense, defenses
from fedre_privacy.entanglement.base import Entanglement, schemes
from fedre_privacy.eval.metrics.base import Metric, metrics
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.partition.base import Partition, partitions
from fedre_privacy.presets import preset
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.threats.base import threats

from .options import ATTACKING, TRAINING
from .resolution import LISTED, set_listed
from .settings import Values

REGISTRIES: Mapping[type, Registry[Any]] = {
    Attack: attacks,
    Dataset: datasets,
    Defense: defenses,
    Entanglement: schemes,
    Metric: metrics,
    Partition: partitions,
    Protocol: protocols,
    Steering: steerings,
}
SWITCHED = ("data", "partition", "protocol", "attack", *LISTED)
"""Sections whose settings belong to the part that they name."""


def plain_value(value: Any) -> Any:
    """Return a value in which every part that is an object is its name and settings.

    Raises:
        ConfigError: an object that could not be made again from its name and settings.
    """
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, type):
        raise ConfigError(f"{value.__name__} is a class; give an object: {value.__name__}().")
    if isinstance(value, ThreatModel):
        if threats.get(value.name) != value:
            raise ConfigError(f"Threat model '{value.name}' is not the registered one.")
        return value.name
    if isinstance(value, ModelSettings):
        return plain(value)
    if not dataclasses.is_dataclass(value):
        return value
    return {"name": _name(value), **plain(value, part=plain_value)}


def _name(part: Any) -> str:
    """The name that leads back to the class of an object: as registered, or ``module:Class``."""
    kind = type(part)
    registry = next((own for base, own in REGISTRIES.items() if isinstance(part, base)), None)
    if registry is None:
        raise ConfigError(
            f"{kind.__name__} is no {', '.join(own.what for own in REGISTRIES.values())}."
        )
    unknown = [f.name for f in dataclasses.fields(part) if "help" not in f.metadata]
    if unknown:
        raise ConfigError(
            f"{registry.what} {kind.__name__} has fields that are no settings: "
            f"{', '.join(unknown)}.",
            next_step="Declare them with fedre_privacy.core.config.knob.",
        )
    name = vars(kind).get("name") or f"{kind.__module__}:{kind.__qualname__}"
    if "<locals>" in name:
        raise ConfigError(
            f"{registry.what} {kind.__name__} is defined inside a function, where it is not found "
            "again by its name.",
            next_step="Define it at the top of a module, or register it under a name.",
        )
    if (import_plugin(name, registry.what) if ":" in name else registry.get(name)) is not kind:
        raise ConfigError(
            f"{registry.what} {kind.__name__} is named '{name}', which is another class.",
            next_step="Register it under a name of its own, or leave the name out.",
        )
    return str(name)


def brief(part: Any) -> str:
    """An object in a few words: its name, and the settings that differ from their defaults."""
    name, changed = plain_value(part)["name"], []
    for field in dataclasses.fields(part):
        value, usual = getattr(part, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            usual = field.default_factory()
        if value != usual:
            shown = brief(value) if "registry" in field.metadata else value
            changed.append(f"{field.name}={shown}")
    return f"{name} ({', '.join(changed)})" if changed else str(name)


def training_values(**options: Any) -> dict[str, Any]:
    """Sections of settings from options of a training (`options.TrainingOptions`).

    Args:
        options: by their names in `TRAINING`; None says nothing.
    """
    return _sections(TRAINING, options)


def attack_values(*, metrics: Any = None, **options: Any) -> dict[str, Any]:
    """Sections of settings from options of an attack (`options.AttackOptions`).

    Args:
        metrics: one or several, by name or as objects, or text of names.
        options: by their names in `ATTACKING`; None says nothing.
    """
    own: dict[str, Any] = {}
    if metrics is not None and not isinstance(metrics, str):
        many = metrics if isinstance(metrics, list | tuple) else [metrics]
        own = {section.pop("name", None): section for section in map(_named_section, many)}
        metrics = list(own)
    own = {name: section for name, section in own.items() if section}
    sections = _sections(ATTACKING, {**options, "metrics": metrics})
    return {**sections, "metrics": own} if own else sections


def _sections(known: Mapping[str, Option], options: Mapping[str, Any]) -> dict[str, Any]:
    if set(options) - set(known):
        raise TypeError(f"unknown options: {', '.join(set(options) - set(known))}")
    sections: dict[str, Any] = {}
    for name, option in known.items():
        if options.get(name) is None:
            continue
        section, _, key = option.at.partition(".")
        value = READERS.get(name, plain_value)(options[name])
        sections[section] = {**sections.get(section, {}), key: value} if key else value
    return {section: value for section, value in sections.items() if value}


def _dataset(given: Any) -> dict[str, Any]:
    """The section of a data set; files and folders that are named without one are refused."""
    if isinstance(given, str) and given not in datasets.names():
        if os.path.exists(given):
            kind = "npz" if given.lower().endswith(".npz") else "imagefolder"
            raise ConfigError(
                f"'{given}' is a file or folder; --dataset takes the name of a data set.",
                next_step=f"Give it as --dataset {kind}:{given}",
            )
    return _named_section(given, lambda name: "path")


def _shorthand(partition: str) -> str:
    known = partition in partitions.names()
    return (partitions.get(partition).shorthand if known else "") or "value"


def _named_section(given: Any, key: Callable[[str], str] | None = None) -> dict[str, Any]:
    """The section of a part that is given by name, by name and settings, or as an object.

    Args:
        key: from a name to the setting that may follow it: ``pra:0.1``.
    """
    section = plain_value(given)
    if isinstance(section, Mapping):
        return dict(section)
    if key is None or not isinstance(section, str):
        return {"name": section}
    name, _, value = section.partition(":")
    return {"name": name, **({key(name): value} if value else {})}


READERS: Mapping[str, Callable[[Any], Any]] = {
    "protocol": _named_section,
    "dataset": _dataset,
    "partition": lambda given: _named_section(given, _shorthand),
    "models": _named_section,
    "secret": lambda given: chosen_secret(str(given)),
    "no_truth": lambda given: not given,
    "attack": _named_section,
    "via": _named_section,
}
"""How what is given for an option is read, where it is not `plain_value` as it stands."""


def layer_settings(
    given: Values,
    assigned: Values,
    *,
    presets: Sequence[str] = (),
    config: Path | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Lay settings over each other; return values and where the keys of the file are.

    Args:
        given: sections of settings; they win over the file, which wins over the presets.
        assigned: single settings, nested by their dotted names; they win over all.
        presets: names of presets, the later ones win.
        config: a settings file.

    Raises:
        ConfigError: an unknown preset, a file that is no settings file, a path where the data set
            has none, or a setting of one of several defences that does not say whose it is.
    """
    allow_module_paths(given, assigned)
    loaded = load_yaml(config) if config else LoadedYaml({}, {})
    values: dict[str, Any] = {}
    for layer in (
        *(preset(name).values for name in presets), _text_keys(loaded.values), given, assigned
    ):  # fmt: skip
        for key, section in layer.items():
            nested = isinstance(section, Mapping)
            if key in LISTED and nested and "name" not in section and values.get(key):
                values[key] = set_listed(key, values[key], section)
            else:
                values[key] = _over(key, values.get(key), section) if nested else section
    return _absolute(values), loaded.where


def in_sections(keys: Iterable[str], sections: Sequence[str]) -> list[str]:
    """Return those of some dotted keys (or ``KEY=VALUE``) that belong to some sections."""
    return [key for key in keys if key.strip().partition("=")[0].split(".")[0] in sections]


def _text_keys(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Read every key as text: YAML takes a bare 5 for a number."""
    return {
        str(key): _text_keys(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def _over(key: str, old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a section over another; another part does not inherit the settings."""
    before = dict(old) if isinstance(old, Mapping) else ({"name": old} if old else {})
    if key in SWITCHED and "name" in new and before.get("name") not in (None, new["name"]):
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


def nest_assignments(chosen: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Single settings by their dotted names, nested."""
    out: dict[str, Any] = {}
    for key, value in (chosen or {}).items():
        out = merge(out, nest_setting(key, plain_value(value)))
    return out


def misplaced_settings(
    chosen: Mapping[str, Any] | None, sections: Sequence[str], why: str
) -> list[str]:
    """Say of each setting that lies in one of some sections why it cannot be given."""
    return [f"'{key}' is {why}." for key in in_sections(chosen or {}, sections)]


def several(given: Any) -> list[Any]:
    """One or several as a list; text, settings and objects are one."""
    many = isinstance(given, Iterable) and not isinstance(given, str | Mapping)
    return list(given) if many else [given]
