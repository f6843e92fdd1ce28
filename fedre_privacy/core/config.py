"""Settings: frozen dataclasses whose fields carry their own help, unit and bounds.

A plugin *is* such a dataclass: its fields are its hyper-parameters and their defaults. Values
come from defaults, then a YAML file, then command-line options; anything unknown or out of range
is reported, all of it at once, before any work starts.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from .errors import ConfigError, DamagedInputError, MissingInputError, nearest
from .files import read_text
from .nested_values import merge as merge
from .registry import Registry
from .typed_yaml import MOST_SETTINGS, parse_yaml, short

T = TypeVar("T")

LARGEST = 2**63 - 1
"""Largest whole number that a setting can be."""

LARGEST_FLOAT = 1e30
"""Largest number that a setting can be: float32 ends at 3.4e38, and products have to fit."""


BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": (">=", operator.ge),
    "gt": (">", operator.gt),
    "le": ("<=", operator.le),
    "lt": ("<", operator.lt),
}
"""How numbers are bounded: as it is written, and checked."""


def knob(
    default: Any,
    *,
    help: str,
    unit: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Iterable[str] | None = None,
    later: bool = False,
) -> Any:
    """Declare one setting of a dataclass with its help text, unit and allowed range.

    Args:
        later: declared after runs were published: left out of `plain` at its default, so that their
            names stay.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    choices = None if choices is None else tuple(choices)
    metadata = _metadata(help, unit=unit, choices=choices, later=later, **bounds)
    return dataclasses.field(default=default, metadata=metadata)


def part(registry: Registry[Any], default: str, *, help: str) -> Any:
    """Declare a setting that is itself a plugin: given by name, or by name and its settings."""
    metadata = _metadata(help, registry=registry, default_name=default)
    return dataclasses.field(default_factory=lambda: registry.get(default)(), metadata=metadata)


def section(default: Any, *, help: str) -> Any:
    """Declare a setting that is a group of settings, with the defaults of an instance."""
    return dataclasses.field(default=default, metadata=_metadata(help, section=default))


def _metadata(help: str, **own: Any) -> dict[str, Any]:
    return {"help": help, "unit": "", **dict.fromkeys(("choices", *BOUNDS)), **own}


@dataclass(frozen=True)
class Knob:
    """One setting, as shown by ``--explain`` and by error messages."""

    name: str
    default: Any
    help: str
    unit: str
    bounds: str


def knobs(cls: type) -> list[Knob]:
    """List the settings of a dataclass in order of declaration; groups are flattened."""
    out: list[Knob] = []
    for f in dataclasses.fields(cls):
        if "section" in f.metadata:
            group = f.metadata["section"]
            out += [
                dataclasses.replace(k, name=f"{f.name}.{k.name}", default=getattr(group, k.name))
                for k in knobs(type(group))
            ]
        elif "help" in f.metadata:
            default = f.metadata.get("default_name", f.default)
            out.append(Knob(f.name, default, f.metadata["help"], f.metadata["unit"], _bounds(f)))
    return out


def _bounds(field: dataclasses.Field[Any]) -> str:
    meta = field.metadata
    if "registry" in meta:
        return "one of " + ", ".join(meta["registry"].names())
    if meta.get("choices"):
        return "one of " + ", ".join(meta["choices"])
    kept = ((sign, meta[key]) for key, (sign, _) in BOUNDS.items() if meta[key] is not None)
    parts = [f"{sign} {_number(bound)}" for sign, bound in kept]
    return " and ".join(parts)


def _number(value: float) -> str:
    """A bound as one types it: no exponent where it is a whole number."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def build(
    cls: type[T],
    values: Mapping[str, Any],
    *,
    at: str,
    problems: list[str],
    where: Mapping[str, str] | None = None,
) -> T | None:
    """Make an instance of a settings dataclass from plain values.

    Args:
        cls: a dataclass whose fields were declared with `knob`.
        values: key to value; keys absent here keep their default.
        at: dotted path of this section (``"attack"``), used in messages.
        problems: every problem found is appended here; nothing is raised.
        where: dotted key to ``file:line``, to point into the user's file.

    Returns:
        The instance, or None when this section had a problem.
    """
    where = where or {}
    fields = {f.name: f for f in dataclasses.fields(cls) if "help" in f.metadata}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    accepted: dict[str, Any] = {}
    before = len(problems)
    for key, value in values.items():
        path = f"{at}.{key}" if at else key
        place = f" ({where[path]})" if path in where else ""
        if key not in fields:
            close = nearest(key, fields)
            hint = f" Did you mean '{at}.{close}'?" if close else ""
            known = ", ".join(fields) or "none"
            problems.append(f"Unknown setting '{path}'{place}.{hint} Settings of {at}: {known}.")
            continue
        field = fields[key]
        if "registry" in field.metadata:
            if isinstance(value, Mapping):
                value = {"name": field.metadata["default_name"], **value}
            accepted[key] = build_plugin(
                field.metadata["registry"], value, at=path, problems=problems, where=where
            )
            continue
        if "section" in field.metadata:
            group = field.metadata["section"]
            if not isinstance(value, Mapping):
                problems.append(f"'{path}'{place} is a group of settings, not {short(value)}.")
                continue
            accepted[key] = build(
                type(group), {**plain(group), **value}, at=path, problems=problems, where=where
            )
            continue
        try:
            accepted[key] = _convert(value, hints[key])
        except ValueError as error:
            problems.append(
                f"'{path}'{place} is {short(value)}; {error}. "
                f"Default: {_display_value(field.default)}."
            )
            continue
        if not _in_range(accepted[key], field):
            unit = f" {field.metadata['unit']}" if field.metadata["unit"] else ""
            problems.append(
                f"'{path}'{place} is {short(value)}; it must be {_bounds(field)}{unit}. "
                f"Default: {_display_value(field.default)}."
            )
    if len(problems) > before:
        return None
    try:
        return cls(**accepted)
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def build_plugin(
    registry: Registry[T],
    value: Any,
    *,
    at: str,
    problems: list[str],
    where: Mapping[str, str] | None = None,
) -> T | None:
    """Make a plugin from ``"name"``, ``"module:Class"`` or ``{name: ..., setting: value}``.

    Problems are appended to `problems`; a plugin that is installed but broken raises.
    """
    where = where or {}
    settings = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = settings.pop("name", None)
    if not isinstance(name, str):
        listed = ", ".join(registry.names())
        problems.append(f"'{at}' needs the name of its {registry.what}. Available: {listed}.")
        return None
    try:
        cls: Any = registry.own(name) if ":" in name else registry.get(name)
    except ConfigError as error:
        place = where.get(f"{at}.name") or where.get(at)
        problems.extend(f"{text} ({place})" if place else text for text in error.problems)
        return None
    if inspect.isabstract(cls) or cls is registry.of or not issubclass(cls, registry.of):
        problems.append(f"'{at}': {name} is no {registry.what}.")
        return None
    has_settings = dataclasses.is_dataclass(cls)
    if not has_settings:
        problems.append(
            f"'{at}': {name} is no dataclass; the fields of any {registry.what} are its settings."
        )
        return None
    if not vars(cls).get("name"):  # its own: what it inherits is another part's
        cls.name = name
    made: T | None = build(cls, settings, at=at, problems=problems, where=where)
    return made


def _display_value(value: Any) -> str:
    return "none" if value is None else str(value)


def _in_range(value: Any, field: dataclasses.Field[Any]) -> bool:
    meta = field.metadata
    if value is None:
        return True
    if meta["choices"] is not None:
        items = value if isinstance(value, tuple) else (value,)
        return all(item in meta["choices"] for item in items)
    if isinstance(value, tuple):
        return all(_in_range(item, field) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return all(meta[key] is None or holds(value, meta[key]) for key, (_, holds) in BOUNDS.items())


def _convert(value: Any, hint: Any) -> Any:
    """Turn a YAML scalar into the declared type, or raise ValueError saying what is needed."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if type(None) in options and value in (None, "none"):  # as help texts write it
            return None
        if value is None:
            raise ValueError("a value is needed")
        inner = [option for option in options if option is not type(None)]
        return _convert(value, inner[0])
    if origin is tuple:
        item = typing.get_args(hint)[0]
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Iterable) or isinstance(parts, Mapping):
            parts = [parts]
        return tuple(
            _convert(part.strip() if isinstance(part, str) else part, item) for part in parts
        )
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise ValueError("it must be true or false")
    if hint is int:
        if isinstance(value, bool):
            raise ValueError("it must be a whole number")
        if isinstance(value, int):  # a float would round large seeds
            if not -LARGEST - 1 <= value <= LARGEST:
                raise ValueError(f"it must be a whole number from {-LARGEST - 1} to {LARGEST}")
            return value
        try:
            as_float = float(value)
        except (TypeError, ValueError):
            raise ValueError("it must be a whole number") from None
        if not math.isfinite(as_float) or as_float != int(as_float) or abs(as_float) > LARGEST:
            raise ValueError("it must be a whole number")
        return int(as_float)
    if hint is float:
        if isinstance(value, bool):
            raise ValueError("it must be a number")
        try:
            number = float(value)  # YAML reads 1e-3 as text
        except (TypeError, ValueError, OverflowError):
            raise ValueError("it must be a number") from None
        if not math.isfinite(number) or abs(number) > LARGEST_FLOAT:
            raise ValueError("it must be a finite number of at most 1e30")
        return number
    if hint is str:
        if isinstance(value, Mapping | list | tuple):
            raise ValueError("it must be text")
        return str(value)
    raise TypeError(f"settings of type {hint} are not supported")


def plain(instance: Any, part: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    """Return the settings of a dataclass instance as YAML-ready values.

    Args:
        part: writes settings that are plugins; None: `plain_plugin`.
    """
    out: dict[str, Any] = {}
    for field in dataclasses.fields(instance):
        if "help" in field.metadata:
            value = getattr(instance, field.name)
            if field.metadata.get("later") and value == field.default:
                continue
            if "registry" in field.metadata:
                value = (part or plain_plugin)(value)
            elif "section" in field.metadata:
                value = plain(value)
            out[field.name] = list(value) if isinstance(value, tuple) else value
    return out


def plain_plugin(instance: Any) -> dict[str, Any]:
    """Return a plugin's name and settings as YAML-ready values (see `build_plugin`)."""
    return {"name": instance.name, **plain(instance)}


def modules_of(instance: Any) -> set[str]:
    """Return the names of the modules that define a part and the parts among its settings."""
    out = {type(instance).__module__}
    for field in dataclasses.fields(instance):
        if "registry" in field.metadata:
            out |= modules_of(getattr(instance, field.name))
    return out


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Turn ``["attack.steps=500"]`` into nested values.

    Raises:
        ConfigError: an item has no ``=``, no key, or a value that is not YAML.
    """
    out: dict[str, Any] = {}
    problems = []
    for item in assignments:
        key, equals, text = item.partition("=")
        if not equals or not key.strip(". "):
            problems.append(f"--set takes KEY=VALUE, for example attack.steps=500; got '{item}'.")
            continue
        try:
            value: Any = parse_yaml(text)[0]
        except (ValueError, yaml.YAMLError):
            problems.append(f"--set {item}: '{text}' is not a YAML value; quote it if it is text.")
            continue
        out = merge(out, nest_setting(key, value))
    if problems:
        raise ConfigError(*problems)
    return out


def nest_setting(key: str, value: Any) -> dict[str, Any]:
    """Turn ``attack.steps`` and 500 into ``{"attack": {"steps": 500}}``."""
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return dict(value)


@dataclass(frozen=True)
class LoadedYaml:
    """A YAML file's values and the line of each key."""

    values: dict[str, Any]
    where: dict[str, str]


def load_yaml(path: Path) -> LoadedYaml:
    """Read a settings file, remembering where each key stands.

    Raises:
        MissingInputError: no such file.
        ConfigError: not YAML, or not a mapping.
    """
    if not path.is_file():
        there = next(one for one in path.absolute().parents if one.is_dir())
        raise MissingInputError(
            f"No settings file at {path}.",
            next_step=f"See what is there: ls {shlex.quote(str(there))}",
        )
    try:
        values, node = parse_yaml(read_text(path, MOST_SETTINGS))
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    except DamagedInputError as error:
        raise ConfigError(*error.problems) from None
    if values is None:
        return LoadedYaml({}, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold 'section: {{setting: value}}' pairs.")
    where: dict[str, str] = {}

    def walk(mapping: yaml.MappingNode, prefix: str) -> None:
        for key, value in mapping.value:
            dotted = f"{prefix}{key.value}"
            where[dotted] = f"{path.name}:{key.start_mark.line + 1}"
            if isinstance(value, yaml.MappingNode):
                walk(value, dotted + ".")

    assert isinstance(node, yaml.MappingNode)
    walk(node, "")
    return LoadedYaml(values, where)
