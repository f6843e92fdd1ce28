"""Modules of another system: functions that make them, and the parameters that go into them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Holds, Role
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingInputError
from fedre_privacy.core.registry import import_own
from fedre_privacy.core.types import Broadcast
from fedre_privacy.core.units import first_few
from fedre_privacy.sandbox.module_recipes import Key, LazyModule, Modules, Recipe

from .external_names import COUNTED, SHOWN, Layout, NamedTensors, under_names
from .user_checks import Shape

State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class States:
    """States of clients' modules, with what was assumed, and who has none."""

    known: Mapping[int, State]
    said: Mapping[int, tuple[str, ...]]
    lost: Mapping[int, IncompatibleError]


def extractor_states(
    extractor: str, weights: Path, given: State, clients: Collection[int]
) -> States:
    """What each client's extractor holds, from the tensors of a file.

    Args:
        extractor: ``package:function`` that returns the module.
        given: its tensors, for all clients or ``client<k>/<name>`` for each.

    Raises:
        ConfigError: the function is not there, fails, or returns no module.
    """
    own = any(name.startswith("client") and "/" in name for name in given)
    layout = Layout.of(build_module(extractor, "--extractor"))
    known: dict[int, State] = {}
    said: dict[int, tuple[str, ...]] = {}
    lost = {}
    for client in clients:
        prefix = f"client{client}/" if own else ""
        found = {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}
        named = under_names(found, layout, more=True)
        absent = [name for name in layout.parameters if name not in named.tensors]
        problems = named.problems or tuple(f"'{name}' is absent" for name in absent)
        if problems:
            lost[client] = IncompatibleError(
                f"{weights} does not fit --extractor {extractor}: {_first(problems)}.",
                next_step="Give the weights of this very module, as safetensors of its "
                "state_dict().",
            )
            continue
        known[client] = {**layout.state, **named.tensors}
        assumed = (*named.said, *_absent_buffers(named, layout))
        said[client] = tuple(f"of its weights, {one}" for one in assumed)
    return States(known, said, lost)


def load_extractors(
    extractor: str, states: Mapping[int, State], image_shape: Shape, keys: Collection[Key]
) -> Modules:
    """Each client's extractor by (client, round).

    Args:
        extractor: ``package:function`` that returns the module.
        states: by client, see `extractor_states`.
        image_shape: (C, H, W) of the images that it takes.
    """
    recipe = Recipe(factory=extractor, image_shape=image_shape)
    return Modules({key: LazyModule(recipe, partial(states.__getitem__, key[0])) for key in keys})


@dataclass(frozen=True, eq=False)
class ExternalStart:
    """The model from which an upload started.

    Args:
        sent: those that were sent. place: of their artifact in the message.
    """

    state: State
    sent: State
    place: int
    said: tuple[str, ...]


class Starts:
    """The models from which uploads started, with what was sent to their clients.

    Args:
        network: ``package:function`` that returns the module, images to logits.
        broadcasts: of the rounds of the uploads; parameters under names that `under_names`
            understands.
        image_shape: (C, H, W) of the images that the network takes.

    Raises:
        ConfigError: the function is not there, fails, or returns no module.
    """

    def __init__(self, network: str, broadcasts: Sequence[Broadcast], image_shape: Shape) -> None:
        self.network, self.broadcasts, self.image_shape = network, broadcasts, image_shape
        self.layout = Layout.of(build_module(network, "--network"))
        self._known: dict[int, ExternalStart] = {}

    def of(self, client: int, round: int) -> ExternalStart:
        """What a client started a round from.

        Raises:
            MissingInputError: it was not recorded.
            IncompatibleError: it is not the parameters of this module.
        """
        for number, one in enumerate(self.broadcasts):
            if one.round == round and client in one.recipients and self._models(one):
                if number not in self._known:
                    self._known[number] = self._first_fitting_model(self._models(one))
                return self._known[number]
        raise MissingInputError(
            f"What client {client} started round {round} from was not recorded: "
            "there is no broadcast of a model to it in that round.",
            next_step="Record what the server sends as well (docs/my_federation.md).",
        )

    def modules(self, keys: Collection[Key]) -> Modules:
        """The models by (client, round)."""
        recipe = Recipe(factory=self.network, image_shape=self.image_shape)

        def state(key: Key) -> State:
            return self.of(*key).state

        return Modules({key: LazyModule(recipe, partial(state, key)) for key in keys})

    def renamed(self) -> tuple[Broadcast, ...]:
        """The broadcasts, with the models that uploads started from under the module's names."""
        out = list(self.broadcasts)
        for number, start in self._known.items():
            artifacts = list(out[number].artifacts)
            kind = type(artifacts[start.place])
            if Role.PACKED not in kind.roles:
                named = {f"params/{name}": value for name, value in start.sent.items()}
                artifacts[start.place] = kind.from_tensors(named)
                out[number] = replace(out[number], artifacts=tuple(artifacts))
        return tuple(out)

    def _models(self, message: Broadcast) -> dict[int, State]:
        """The parameters that a message holds, by the place of the artifact."""
        shapes = {name: self.layout.state[name].shape for name in self.layout.parameters}
        found = {
            place: artifact.parameters(shapes)
            for place, artifact in enumerate(message.artifacts)
            if artifact.holds is Holds.PARAMETERS
        }
        return {place: params for place, params in found.items() if params}

    def _first_fitting_model(self, models: Mapping[int, State]) -> ExternalStart:
        """The first model of a message that fits."""
        found = {place: under_names(one, self.layout) for place, one in models.items()}
        place = next((p for p, one in found.items() if not one.problems), min(found))
        named = found[place]
        if named.problems:
            raise IncompatibleError(
                f"What was sent does not fit --network {self.network}: {_first(named.problems)}.",
                next_step="Give the function that makes this very model, with the head.",
            )
        absent = [name for name in self.layout.parameters if name not in named.tensors]
        said = [*named.said, *_absent_buffers(named, self.layout)]
        if absent:
            self._makes_the_same(absent)
            said.append(f"{first_few(absent, SHOWN)} not sent, taken as --network makes them")
        return ExternalStart(
            {**self.layout.state, **named.tensors},
            named.tensors,
            place,
            tuple(f"of the broadcast, {one}" for one in said),
        )

    def _makes_the_same(self, names: Sequence[str]) -> None:
        """Refuse to take parameters from a function that makes others each time."""
        again = Layout.of(build_module(self.network, "--network")).state
        other = [name for name in names if not torch.equal(again[name], self.layout.state[name])]
        if other:
            raise IncompatibleError(
                f"Not sent: {first_few(other, SHOWN)}; and --network {self.network} makes other "
                "values each time.",
                next_step="Let the function load the weights that clients hold and do not train.",
            )


def _absent_buffers(named: NamedTensors, layout: Layout) -> list[str]:
    """What is said of buffers that were not given."""
    absent = [
        name
        for name in layout.state
        if not (name in named.tensors or name in layout.parameters or name.endswith(COUNTED))
    ]
    taken = "not given, taken as a new module has them"
    return [f"{first_few(absent, SHOWN)} {taken}"] if absent else []


def params_of(artifact: Artifact) -> State:
    """The tensors by name that an artifact holds; empty for none."""
    found: State = getattr(artifact, "params", {})
    return found


def _first(problems: Sequence[str]) -> str:
    more = len(problems) - SHOWN
    return "; ".join(problems[:SHOWN]) + (f"; {more} more" if more > 0 else "")


def build_module(path: str, option: str) -> nn.Module:
    """What a function of a user's module makes.

    Raises:
        ConfigError: it is not there, fails, or returns no module.
    """
    try:
        module = _import_function(path, option)()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{option} {path} fails: {error!r}.") from None
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{option} {path} returns a {type(module).__name__}, not an nn.Module.")
    return module


def _import_function(path: str, option: str) -> Any:
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"{option} is package:function, for example mine:make; got '{path}'.")
    try:
        found = getattr(import_own(module), name, None)
    except Exception as error:
        raise ConfigError(f"{option} {path}: {module} cannot be imported: {error!r}.") from None
    if not callable(found):
        raise ConfigError(f"{option} {path}: module {module} has no function '{name}'.")
    return found
