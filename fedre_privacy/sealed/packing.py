"""An observation as files of plain values: JSON and safetensors, no pickle, nothing else.

What was packed and unpacked shares no storage, no closure and no path with where it came from, so
an attack that gets it can search it as it likes.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

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
    LocalTraining,
    Observation,
    Property,
    Rehearsal,
    ThreatModel,
    Upload,
)

from .modules import Held, Key, Modules, Recipe

HEAD, TENSORS = "observation.json", "observation.safetensors"

MODULES = {
    "extractors": "extractor", "models": "model", "initial": "initial model", "heads": "head",
}  # fmt: skip
"""Fields of an observation that hold modules, and what these are."""

Plain = dict[str, Any]
T = TypeVar("T")


class _Tensors:
    """Tensors by a number each; the same tensor is written once."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def add(self, tensor: Tensor) -> str:
        if id(tensor) not in self._names:
            self._names[id(tensor)] = f"t{len(self.kept)}"
            self.kept[self._names[id(tensor)]] = tensor
        return self._names[id(tensor)]

    def message(self, message: Upload | Broadcast) -> Plain:
        """A message with its artifacts by kind, and of each the names of its tensors."""
        artifacts = [
            {"kind": one.kind, "tensors": {n: self.add(t) for n, t in one.tensors().items()}}
            for one in message.artifacts
        ]
        return {**vars(message), "artifacts": artifacts}


def pack(observation: Observation, folder: Path) -> None:
    """Write an observation into an empty folder.

    Raises:
        IncompatibleError: a module of it was not given as a recipe (see `modules.Modules`).
    """
    tensors, training = _Tensors(), observation.training
    threat, rehearse = observation.threat, observation.rehearse
    named = {"aux": observation.aux, "aux_labels": observation.aux_labels}
    named |= vars(observation.candidates) if observation.candidates else {}
    head: Plain = {
        "threat": {**vars(threat), "grants": sorted(threat.grants)},
        "targets": [tensors.message(one) for one in observation.targets],
        "uploads": [tensors.message(one) for one in observation.uploads],
        "broadcasts": [tensors.message(one) for one in observation.broadcasts],
        "image_shape": observation.image_shape,
        "num_classes": observation.num_classes,
        "images_per_target": observation.images_per_target,
        "training": training and {**vars(training), "sizes": list(training.sizes.items())},
        "tensors": {name: tensors.add(t) for name, t in named.items() if t is not None},
        "defenses": [
            {
                "name": one.name,
                "settings": dict(one.settings),
                "channel": None if one.channel is None else one.channel.plain(),
            }
            for one in observation.defenses
        ],
        "properties": [vars(one) for one in observation.properties],
        "modules": {
            name: _modules(getattr(observation, name), what, folder)
            for name, what in MODULES.items()
        },
        # broadcasts, of which it is made as well, are in the observation already
        "rehearse": rehearse and {"factory": _path(rehearse), "settings": rehearse.plain()},
    }
    files.write_tensors(folder / TENSORS, tensors.kept)
    files.write_text(folder / HEAD, json.dumps(head))


def unpack(folder: Path) -> Observation:
    """Read what `pack` wrote; modules are read when they are asked for."""
    head = files.read_json(folder / HEAD, dict)
    tensors = files.read_tensors(folder / TENSORS)
    named = {name: tensors[key] for name, key in head["tensors"].items()}
    aux, aux_labels = named.pop("aux", None), named.pop("aux_labels", None)
    training, threat = head["training"], head["threat"]
    messages: dict[str, Any] = {
        name: tuple(_message(kind, one, tensors) for one in head[name])
        for name, kind in (("targets", Upload), ("uploads", Upload), ("broadcasts", Broadcast))
    }
    rehearse, told = None, head["rehearse"]
    if told is not None:  # its module is loaded for observations that hold one, and no others
        module, _, name = told["factory"].partition(":")
        repeats: type[Rehearsal] = getattr(importlib.import_module(module), name)
        rehearse = repeats.from_plain(told["settings"], messages["broadcasts"])
    modules: dict[str, Any] = {
        name: _read_modules(some, folder) for name, some in head["modules"].items()
    }
    return Observation(
        threat=ThreatModel(**{**threat, "grants": frozenset(map(Knowledge, threat["grants"]))}),
        **messages,
        image_shape=tuple(head["image_shape"]),
        num_classes=head["num_classes"],
        images_per_target=head["images_per_target"],
        aux=aux,
        aux_labels=aux_labels,
        training=training and LocalTraining(**{**training, "sizes": dict(training["sizes"])}),
        candidates=Candidates(**named) if named else None,
        defenses=tuple(map(_defense, head["defenses"])),
        properties=tuple(_made(Property, one) for one in head["properties"]),
        rehearse=rehearse,
        **modules,
    )


def _made(kind: type[T], values: Plain) -> T:
    """An instance of plain values, in which lists were tuples."""
    return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})


def _message(kind: type[T], values: Plain, tensors: Mapping[str, Tensor]) -> T:
    artifacts = [
        Artifact.kinds[one["kind"]].from_tensors({n: tensors[k] for n, k in one["tensors"].items()})
        for one in values["artifacts"]
    ]
    return _made(kind, {**values, "artifacts": artifacts})


def _defense(values: Plain) -> KnownDefense:
    channel = values["channel"]
    known = None if channel is None else Channel.from_plain(channel)
    return KnownDefense(values["name"], values["settings"], known)


def _path(held: Rehearsal) -> str:
    return f"{type(held).__module__}:{type(held).__qualname__}"


def _modules(modules: Mapping[Key, nn.Module], what: str, folder: Path) -> list[Plain]:
    """Write the state of each module to a file of its own, and return their recipes."""
    if not modules:
        return []
    if not isinstance(modules, Modules):
        raise IncompatibleError(
            f"The {what}s of this observation are modules and not recipes of modules, so they "
            "cannot be handed to another process.",
            next_step="Call the attack itself on it: attack(observation).",
        )
    out = []
    for number, (key, held) in enumerate(modules.held.items()):
        name = f"{what.replace(' ', '-')}-{number}.safetensors"
        files.write_tensors(folder / name, held.state())
        out.append({"key": key, "recipe": vars(held.recipe), "state": name})
    return out


def _read_modules(values: Sequence[Plain], folder: Path) -> Modules:
    def held(one: Plain) -> Held:
        path = folder / one["state"]
        return Held(_made(Recipe, one["recipe"]), lambda: files.read_tensors(path))

    return Modules({tuple(one["key"]): held(one) for one in values})
