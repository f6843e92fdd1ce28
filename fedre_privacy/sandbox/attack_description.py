"""What an attack says of itself, asked for in the process that attacks run in.

The evaluator never imports the module of an attack that is named ``module:Class``: importing runs
it. The module is imported in a process as attacks run in, which tells the settings and declarations
of the class; of these a class is made here that stands for it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from fedre_privacy.attacks.base import Attack, attacks
from fedre_privacy.core.config import knob, part
from fedre_privacy.core.errors import ConfigError, IncompatibleError, unknown_name
from fedre_privacy.core.types import Knowledge

OURS = f"{__package__.partition('.')[0]}."
PLAIN: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
"""Types of settings that can be told."""

TEXTS = ("recovers", "answers", "assumes")
MARKS = ("simulates", "differentiates", "particular", "earliest", "first_alone", "adds_rounds")
ASKED = ("required", "several_rounds", "adapts", "weakened", "explained")
"""What the evaluator computes by an attack's own code, if the attack overrides it."""

LIMITS = ("help", "unit", "ge", "gt", "le", "lt", "choices", "later")


def describe(module: str, name: str) -> dict[str, Any]:
    """Import a class, and say what it is in plain values; called where attacks run.

    Raises:
        ConfigError: there is no such class, or it is no attack.
        IncompatibleError: it says something of itself that cannot be told.
    """
    found = getattr(importlib.import_module(module), name, None)
    if not inspect.isclass(found):
        own = importlib.import_module(module).__dict__.items()
        classes = [n for n, c in own if inspect.isclass(c) and c.__module__ == module]
        raise ConfigError(unknown_name("class", name, classes, at=module))
    if not issubclass(found, Attack) or inspect.isabstract(found):
        raise ConfigError(f"{module}:{name} is no attack.")
    base = next(cls for cls in found.__mro__ if cls.__module__.startswith(OURS))
    strangers = found.__mro__[: found.__mro__.index(base)]
    trust = f"Name its module too, which trusts it: --plugin {module}."
    asked = [one for one in ASKED if any(one in vars(cls) for cls in strangers)]
    if asked:
        raise IncompatibleError(
            f"Attack '{module}:{name}' overrides {', '.join(asked)}, which the evaluator would "
            "have to run.",
            next_step=trust,
        )
    kinds = [*found.consumes, *found.needs_for]
    steps = [step for several in found.adapts_to.values() for step in several]
    if any(not cls.__module__.startswith(OURS) for cls in (*kinds, *steps)):
        raise IncompatibleError(
            f"Attack '{module}:{name}' reads kinds of uploads or channels of its own.",
            next_step=trust,
        )
    before = {field.name: field.default for field in dataclasses.fields(base)}
    hints = typing.get_type_hints(found)
    fields = [
        _field_value(field, hints[field.name], trust)
        for field in dataclasses.fields(found)
        if field.name not in before or field.default != before[field.name]
    ]
    return {
        "name": str(vars(found).get("name") or ""),
        "doc": inspect.getdoc(found) or "",
        "base": [base.__module__, base.__qualname__],
        "fields": fields,
        "texts": {one: str(getattr(found, one)) for one in TEXTS},
        "marks": {one: bool(getattr(found, one)) for one in MARKS},
        "consumes": [_path(kind) for kind in found.consumes],
        "needs": sorted(str(one) for one in found.needs),
        "needs_for": [[_path(k), sorted(map(str, v))] for k, v in found.needs_for.items()],
        "adapts_to": {place: [_path(s) for s in v] for place, v in found.adapts_to.items()},
        "loops": {str(one): int(count) for one, count in found.loops.items()},
        "steered": [str(one) for one in found.steered],
    }


def stand_in(module: str, name: str, told: Mapping[str, Any]) -> type[Attack]:
    """A class with the settings and declarations that were told, and nothing to run.

    It is registered if the class was, so that files which name it are read.

    Raises:
        ConfigError: another attack has its name.
        IncompatibleError: what was told is no description.
    """
    try:
        base = _ours(*told["base"])
        if not issubclass(base, Attack):
            raise TypeError("its base is no attack")
        fields = [
            (str(field["name"]), _type(field["type"]), _declared_field(field))
            for field in told["fields"]
        ]
        space: dict[str, Any] = {
            **{one: str(told["texts"][one]) for one in TEXTS},
            **{one: bool(told["marks"][one]) for one in MARKS},
            "consumes": tuple(_ours(*kind) for kind in told["consumes"]),
            "needs": frozenset(Knowledge(one) for one in told["needs"]),
            "needs_for": {
                _ours(*kind): frozenset(map(Knowledge, needs)) for kind, needs in told["needs_for"]
            },
            "adapts_to": {
                str(place): tuple(_ours(*one) for one in steps)
                for place, steps in told["adapts_to"].items()
            },
            "loops": {str(one): int(count) for one, count in told["loops"].items()},
            "steered": tuple(map(str, told["steered"])),
            "suite": (),
            "name": str(told["name"]) or f"{module}:{name}",
            "run": _elsewhere,
            "__doc__": str(told["doc"]),
        }
        made = dataclasses.make_dataclass(
            name, fields, bases=(base,), namespace=space, frozen=True, kw_only=True, eq=True
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IncompatibleError(
            f"The module of attack '{module}:{name}' described it by what is no description: "
            f"{type(error).__name__}: {error}."
        ) from None
    made.__module__, made.__qualname__ = module, name
    return attacks.register(str(told["name"]))(made) if told["name"] else made


def stands_in(attack: Attack) -> bool:
    """Whether an attack only stands for one whose module was not imported."""
    return type(attack).run is _elsewhere


def _elsewhere(self: Attack, *_: object) -> Any:
    raise TypeError(f"attack '{self.name}' runs in a process of its own")


def _field_value(field: dataclasses.Field[Any], hint: Any, trust: str) -> dict[str, Any]:
    meta = field.metadata
    if "section" in meta or ("registry" in meta and meta["registry"] is not attacks):
        raise IncompatibleError(
            f"The setting '{field.name}' is a group of settings, or a part of another kind.",
            next_step=trust,
        )
    if "registry" in meta:
        return {"name": field.name, "type": "part", "default": meta["default_name"],
                "limits": {"help": meta["help"]}}  # fmt: skip
    return {
        "name": field.name,
        "type": _type_name(hint),
        "default": list(field.default) if isinstance(field.default, tuple) else field.default,
        "limits": {key: meta[key] for key in LIMITS if meta.get(key) is not None},
    }


def _type_name(hint: Any) -> str:
    """``int``, ``int | None`` or ``tuple[int]``, as `_type` reads it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return f"tuple[{_type_name(inner[0])}]"
    if origin in (typing.Union, types.UnionType):
        return f"{_type_name(next(one for one in inner if one is not type(None)))} | None"
    return str(getattr(hint, "__name__", hint))


def _type(name: str) -> Any:
    if name == "part":
        return Attack
    if name.endswith(" | None"):
        return _type(name.removesuffix(" | None")) | None
    if name.startswith("tuple["):
        return tuple[_type(name[6:-1]), ...]  # type: ignore[misc]
    return PLAIN[name]


def _declared_field(field: Mapping[str, Any]) -> Any:
    limits = {key: field["limits"][key] for key in LIMITS if key in field["limits"]}
    if field["type"] == "part":
        return part(attacks, str(field["default"]), help=str(limits["help"]))
    default = field["default"]
    return knob(tuple(default) if isinstance(default, list) else default, **limits)


def _path(cls: type) -> list[str]:
    return [cls.__module__, cls.__qualname__]


def _ours(module: str, name: str) -> Any:
    """A class of this package, and of no other."""
    if not module.startswith(OURS):
        raise ValueError(f"{module} is not of this package")
    return getattr(importlib.import_module(module), name)
