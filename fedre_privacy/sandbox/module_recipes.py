"""Modules that an attacker holds, as recipes and states: nothing in them leads back to a run."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.config import modules_of
from fedre_privacy.core.errors import DamagedInputError, IncompatibleError
from fedre_privacy.models.families import ModelSettings, build_model, members_of
from fedre_privacy.models.probe import settle
from fedre_privacy.models.zoo import architectures

HELD_AT_ONCE = 32
"""Modules kept in memory; others are built again when they are asked for."""

EXTRACTOR, MODEL, HEAD = "extractor", "model", "head"

Key = tuple[int, int]
"""(client, round)."""


@dataclass(frozen=True)
class Recipe:
    """How a module is built before its state is loaded, in plain values.

    Args:
        settings: those of `ModelSettings`; empty for a module of a factory.
        client: number of the client, which picks the architecture.
        image_shape: (C, H, W). num_classes: length of the head's output.
        part: the whole model, its extractor or its head.
        factory: ``package:function`` that returns the module, in place of the others but the
            image shape, with which it is tried (`models.probe.settle`).
        defenses: settings of defences whose learnt changes the extractor makes, alone or in the
            whole model.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    client: int = 0
    image_shape: tuple[int, ...] = ()
    num_classes: int = 0
    part: str = MODEL
    factory: str = ""
    defenses: tuple[Mapping[str, Any], ...] = ()

    def modules(self) -> set[str]:
        """Names of the Python modules that building it needs."""
        if self.factory:
            return {self.factory.partition(":")[0]}
        names = members_of(str(self.settings["name"]))
        return {architectures.get(n).__module__ for n in names}.union(
            *map(modules_of, self._defenses())
        )

    def _defenses(self) -> tuple[Any, ...]:
        """The defences that change what the extractor makes; no attacker loads any without need."""
        if not self.defenses:
            return ()
        from fedre_privacy.defenses.base import defenses_of

        return defenses_of(self.defenses)

    def settle(self, module: nn.Module) -> None:
        """Make a module ready that has its parameters."""
        if self.defenses and self.part == MODEL:
            images = torch.rand(2, *self.image_shape, generator=torch.Generator().manual_seed(0))
            module.find_opaque(images)  # type: ignore[operator]

    def build(self) -> nn.Module:
        """Make the module; its parameters are yet to be loaded."""
        if self.factory:
            module, _, name = self.factory.partition(":")
            made: nn.Module = getattr(importlib.import_module(module), name)()
            return settle(made, self.image_shape) if self.image_shape else made
        settings, (channels, height, width) = ModelSettings(**self.settings), self.image_shape
        model = build_model(settings, self.client, (channels, height, width), self.num_classes)
        if self.defenses and self.part != HEAD:
            from fedre_privacy.defenses.defended_modules import blank_extractor, blank_model
            from fedre_privacy.defenses.local_pass import ModelShapes

            shapes = ModelShapes((channels, height, width), model.dim, self.num_classes)
            if self.part == MODEL:
                return blank_model(model.extractor, model.head, self._defenses(), shapes)
            return blank_extractor(model.extractor, self._defenses(), shapes)
        return {EXTRACTOR: model.extractor, HEAD: model.head, MODEL: model}[self.part]


@dataclass(frozen=True, eq=False)
class LazyModule:
    """One module of an observation.

    Args:
        state: reads its tensors by name; asked each time the module is built.
    """

    recipe: Recipe
    state: Callable[[], Mapping[str, Tensor]]


class Modules(Mapping[Key, nn.Module]):
    """Frozen modules in evaluation mode by (client, round), built when they are asked for."""

    def __init__(self, held: Mapping[Key, LazyModule]) -> None:
        self.held = dict(held)

        @lru_cache(maxsize=HELD_AT_ONCE)
        def load(key: Key) -> nn.Module:
            one = self.held[key]
            module = one.recipe.build()
            try:
                module.load_state_dict(dict(one.state()))
            except RuntimeError as error:
                raise DamagedInputError(
                    f"The parameters of client {key[0]} in round {key[1]} do not fit its model: "
                    f"{error}"
                ) from None
            one.recipe.settle(module.eval())
            return module.requires_grad_(False)

        self._load = load

    def __getitem__(self, key: Key) -> nn.Module:
        if key not in self.held:
            raise KeyError(key)
        return self._load(key)

    def __contains__(self, key: object) -> bool:  # the inherited one would build the module
        return key in self.held

    def __iter__(self) -> Iterator[Key]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def frozen_copies(modules: Mapping[Key, nn.Module]) -> dict[Key, nn.Module]:
    """Copies on the CPU in evaluation mode whose parameters take no gradient, in float32.

    Hooks are copied with their modules. A module that stands under several keys is copied once.

    Raises:
        IncompatibleError: a module cannot be copied.
    """
    made: dict[int, nn.Module] = {}
    for module in modules.values():
        if id(module) in made:
            continue
        try:
            twin = copy.deepcopy(module).to("cpu", torch.float32)
        except Exception as error:
            raise IncompatibleError(
                f"The {type(module).__name__} cannot be copied: {' '.join(str(error).split())}",
                next_step="Detach the tensors that it keeps beside its parameters and buffers, or "
                "make a new module and load the state_dict() of this one.",
            ) from None
        made[id(module)] = twin.eval().requires_grad_(False)
    return {key: made[id(module)] for key, module in modules.items()}
