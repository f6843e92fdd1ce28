"""An observation as files of plain values: JSON and safetensors, no pickle, nothing else.

What was packed and unpacked shares no storage, no closure and no path with where it came from, so
an attack that gets it can search it as it likes.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedre_privacy.core import files
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.channels import Channel
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import (
    Broadcast,
    Candidates,
    Knowledge,
    KnownDefense,
    LocalTrainingFacts,
    Observation,
    Property,
    Rehearsal,
    ThreatModel,
    Upload,
)
from fedre_privacy.models.weights import carry_weights, find_weights

from .module_recipes import Key, LazyModule, Modules, Recipe

HEAD, TENSORS = "observation.json", "observation.safetensors"

MODULES = {"extractors": "extractor", "models": "model", "initial": "initial-model",
           "heads": "head"}  # fmt: skip
"""Fields of an observation that hold modules, and what begins the names of their files."""

RECORDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Broadcast, Candidates, KnownDefense, LocalTrainingFacts, Property, Recipe, ThreatModel,
        Upload,
    )
}  # fmt: skip
"""Dataclasses that are written field by field."""

Plain = dict[str, Any]


def pack(observation: Observation, folder: Path) -> None:
    """Write an observation into an empty folder.

    Raises:
        IncompatibleError: a module of it was not given as a recipe (see `modules.Modules`).
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}  # the same tensor is written once

    def encode(value: Any) -> Any:
        match value:
            case Tensor():
                name = names.setdefault(id(value), f"t{len(names)}")
                tensors[name] = value
                return {"tensor": name}
            case Artifact():
                return {"artifact": value.kind, "tensors": encode(value.tensors())}
            case Channel():
                return {"channel": value.plain()}
            case Knowledge():
                return {"knowledge": str(value)}
            case Mapping():
                return {"mapping": [[encode(k), encode(v)] for k, v in value.items()]}
            case frozenset():
                return {"set": [encode(one) for one in sorted(value)]}
            case list():
                return {"list": [encode(one) for one in value]}
            case tuple():
                return [encode(one) for one in value]
            case Recipe():
                carried = carry_weights(value.settings, folder)
                return as_record(dataclasses.replace(value, settings=carried))
            case _ if type(value) in RECORDS.values():
                return as_record(value)
        return value

    def as_record(value: Any) -> Plain:
        fields = [item.name for item in dataclasses.fields(value)]
        values = {name: encode(getattr(value, name)) for name in fields}
        return {"record": type(value).__name__, "fields": values}

    head: Plain = {}
    for item in dataclasses.fields(observation):
        value = getattr(observation, item.name)
        if item.name in MODULES:
            head[item.name] = encode(_write_states(value, MODULES[item.name], folder))
        elif item.name == "rehearse":  # its broadcasts are in the observation already
            head[item.name] = value and {
                "factory": f"{type(value).__module__}:{type(value).__qualname__}",
                "settings": _with_model(value.plain(), carry_weights, folder),
            }
        else:
            head[item.name] = encode(value)
    files.write_tensors(folder / TENSORS, tensors)
    files.write_text(folder / HEAD, json.dumps(head))


def unpack(folder: Path) -> Observation:
    """Read what `pack` wrote; modules are read when they are asked for."""
    head = files.read_json(folder / HEAD, dict)
    tensors = files.read_tensors(folder / TENSORS)

    def decode(value: Any) -> Any:
        match value:
            case {"tensor": name}:
                return tensors[name]
            case {"artifact": kind, "tensors": parts}:
                return Artifact.kinds[kind].from_tensors(decode(parts))
            case {"channel": steps}:
                return Channel.from_plain(steps)
            case {"knowledge": name}:
                return Knowledge(name)
            case {"mapping": pairs}:
                return {decode(key): decode(one) for key, one in pairs}
            case {"set": items}:
                return frozenset(map(decode, items))
            case {"list": items}:
                return [decode(one) for one in items]
            case list():
                return tuple(map(decode, value))
            case {"record": kind, "fields": fields}:
                values = {name: decode(one) for name, one in fields.items()}
                if RECORDS[kind] is Recipe:
                    values["settings"] = find_weights(values["settings"], folder)
                return RECORDS[kind](**values)
        return value

    rehearse = head.pop("rehearse")
    values = {name: decode(value) for name, value in head.items()}
    values |= {name: _read_states(values[name], folder) for name in MODULES}
    return Observation(**values, rehearse=_rehearsal(rehearse, values["broadcasts"], folder))


def _with_model(settings: Plain, change: Callable[..., Plain], folder: Path) -> Plain:
    """Settings of a rehearsal with those of its model changed, where they hold a model's."""
    return (
        {**settings, "model": change(settings["model"], folder)}
        if "model" in settings
        else settings
    )


def _rehearsal(
    values: Plain | None, broadcasts: tuple[Broadcast, ...], folder: Path
) -> Rehearsal | None:
    """Its module is loaded for observations that hold one, and no others."""
    if values is None:
        return None
    module, _, name = values["factory"].partition(":")
    kind: type[Rehearsal] = getattr(importlib.import_module(module), name)
    return kind.from_plain(_with_model(values["settings"], find_weights, folder), broadcasts)


def _write_states(modules: Mapping[Key, nn.Module], what: str, folder: Path) -> tuple[Any, ...]:
    """Write the state of each module to a file of its own; keys, recipes and names of files."""
    if modules and not isinstance(modules, Modules):
        raise IncompatibleError(
            f"The {what.replace('-', ' ')}s of this observation are modules and not recipes of "
            "modules, so they cannot be handed to another process.",
            next_step="Call the attack itself on it: attack(observation).",
        )
    held = modules.held.items() if isinstance(modules, Modules) else ()
    out = []
    for number, (key, one) in enumerate(held):
        name = f"{what}-{number}.safetensors"
        files.write_tensors(folder / name, one.state())
        out.append((key, one.recipe, name))
    return tuple(out)


def _read_states(values: Sequence[tuple[Key, Recipe, str]], folder: Path) -> Modules:
    def held(recipe: Recipe, name: str) -> LazyModule:
        return LazyModule(recipe, lambda: files.read_tensors(folder / name))

    return Modules({key: held(recipe, name) for key, recipe, name in values})
