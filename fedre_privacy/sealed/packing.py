"""An observation as files of plain values: JSON and safetensors, no pickle, nothing else.

What was packed and unpacked shares no storage, no closure and no path with where it came from, so
an attack that gets it can search it as it likes.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
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
    LocalTraining,
    Observation,
    Property,
    Rehearsal,
    ThreatModel,
    Upload,
)

from .modules import Held, Key, Modules, Recipe

HEAD, TENSORS = "observation.json", "observation.safetensors"

Plain = dict[str, Any]


class _Tensors:
    """Tensors by a number each; the same tensor is written once."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def add(self, tensor: Tensor | None) -> str | None:
        if tensor is None:
            return None
        if id(tensor) not in self._names:
            self._names[id(tensor)] = f"t{len(self.kept)}"
            self.kept[self._names[id(tensor)]] = tensor
        return self._names[id(tensor)]


def pack(observation: Observation, folder: Path) -> None:
    """Write an observation into an empty folder.

    Raises:
        IncompatibleError: a module of it was not given as a recipe (see `modules.Modules`).
    """
    tensors = _Tensors()
    candidates, training = observation.candidates, observation.training
    head: Plain = {
        "threat": {
            **dataclasses.asdict(observation.threat),
            "grants": sorted(observation.threat.grants),
        },
        "targets": [_upload(one, tensors) for one in observation.targets],
        "uploads": [_upload(one, tensors) for one in observation.uploads],
        "broadcasts": [
            {
                "round": one.round,
                "recipients": list(one.recipients),
                "artifacts": _artifacts(one.artifacts, tensors),
            }
            for one in observation.broadcasts
        ],
        "extractors": _modules(observation.extractors, "extractor", folder),
        "models": _modules(observation.models, "model", folder),
        "image_shape": list(observation.image_shape),
        "num_classes": observation.num_classes,
        "images_per_target": observation.images_per_target,
        "aux": tensors.add(observation.aux),
        "aux_labels": tensors.add(observation.aux_labels),
        "training": None
        if training is None
        else {**dataclasses.asdict(training), "sizes": list(training.sizes.items())},
        "candidates": None
        if candidates is None
        else {
            item.name: tensors.add(getattr(candidates, item.name))
            for item in dataclasses.fields(candidates)
        },
        "defenses": [
            {
                "name": one.name,
                "settings": dict(one.settings),
                "channel": one.channel and one.channel.plain(),
            }
            for one in observation.defenses
        ],
        "initial": _modules(observation.initial, "initial model", folder),
        "rehearse": _rehearsal(observation),
        "heads": _modules(observation.heads, "head", folder),
        "properties": [dataclasses.asdict(one) for one in observation.properties],
    }
    files.write_tensors(folder / TENSORS, tensors.kept)
    files.write_text(folder / HEAD, json.dumps(head))


def unpack(folder: Path) -> Observation:
    """Read what `pack` wrote; modules are read when they are asked for."""
    head = files.read_json(folder / HEAD, dict)
    tensors = files.read_tensors(folder / TENSORS)

    def uploads(values: Sequence[Plain]) -> tuple[Upload, ...]:
        return tuple(
            Upload(
                one["client"],
                one["round"],
                _rebuilt(one["artifacts"], tensors),
                one["counterfactual"],
                tuple(one["participants"]),
            )
            for one in values
        )

    threat, training, asked = head["threat"], head["training"], head["candidates"]
    broadcasts = tuple(
        Broadcast(one["round"], tuple(one["recipients"]), _rebuilt(one["artifacts"], tensors))
        for one in head["broadcasts"]
    )
    return Observation(
        threat=ThreatModel(
            **{**threat, "grants": frozenset(Knowledge(one) for one in threat["grants"])}
        ),
        targets=uploads(head["targets"]),
        uploads=uploads(head["uploads"]),
        broadcasts=broadcasts,
        extractors=_read_modules(head["extractors"], folder),
        models=_read_modules(head["models"], folder),
        image_shape=tuple(head["image_shape"]),
        num_classes=head["num_classes"],
        images_per_target=head["images_per_target"],
        aux=tensors.get(head["aux"]),
        aux_labels=tensors.get(head["aux_labels"]),
        training=None
        if training is None
        else LocalTraining(**{**training, "sizes": dict(training["sizes"])}),
        candidates=None
        if asked is None
        else Candidates(**{name: tensors[key] for name, key in asked.items()}),
        defenses=tuple(
            KnownDefense(
                one["name"],
                one["settings"],
                None if one["channel"] is None else Channel.from_plain(one["channel"]),
            )
            for one in head["defenses"]
        ),
        initial=_read_modules(head["initial"], folder),
        rehearse=_read_rehearsal(head["rehearse"], broadcasts),
        heads=_read_modules(head["heads"], folder),
        properties=tuple(
            Property(**{**one, "darker": tuple(one["darker"])}) for one in head["properties"]
        ),
    )


def _rehearsal(observation: Observation) -> Plain | None:
    """How clients train, and what is made of it; broadcasts are in the observation already."""
    held = observation.rehearse
    if held is None:
        return None
    kind = type(held)
    return {"factory": f"{kind.__module__}:{kind.__qualname__}", "settings": held.plain()}


def _read_rehearsal(values: Plain | None, broadcasts: tuple[Broadcast, ...]) -> Rehearsal | None:
    """Undo `_rehearsal`; its module is loaded for observations that hold one, and no others."""
    if values is None:
        return None
    module, _, name = values["factory"].partition(":")
    kind: type[Rehearsal] = getattr(importlib.import_module(module), name)
    return kind.from_plain(values["settings"], broadcasts)


def _upload(upload: Upload, tensors: _Tensors) -> Plain:
    return {
        "client": upload.client,
        "round": upload.round,
        "counterfactual": upload.counterfactual,
        "participants": list(upload.participants),
        "artifacts": _artifacts(upload.artifacts, tensors),
    }


def _artifacts(artifacts: Sequence[Artifact], tensors: _Tensors) -> list[Plain]:
    return [
        {
            "kind": artifact.kind,
            "tensors": {name: tensors.add(value) for name, value in artifact.tensors().items()},
        }
        for artifact in artifacts
    ]


def _rebuilt(values: Sequence[Plain], tensors: Mapping[str, Tensor]) -> tuple[Artifact, ...]:
    return tuple(
        Artifact.kinds[one["kind"]].from_tensors(
            {name: tensors[key] for name, key in one["tensors"].items()}
        )
        for one in values
    )


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
    for number, ((client, round), held) in enumerate(modules.held.items()):
        name = f"{what.replace(' ', '-')}-{number}.safetensors"
        files.write_tensors(folder / name, held.state())
        recipe = dataclasses.asdict(held.recipe)
        out.append({"client": client, "round": round, "recipe": recipe, "state": name})
    return out


def _read_modules(values: Sequence[Plain], folder: Path) -> Modules:
    def held(one: Plain) -> Held:
        path = folder / one["state"]
        recipe = {**one["recipe"], "image_shape": tuple(one["recipe"]["image_shape"])}
        return Held(Recipe(**recipe), lambda: files.read_tensors(path))

    return Modules({(one["client"], one["round"]): held(one) for one in values})
