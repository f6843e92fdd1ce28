"""Modules of a recorded run that an attacker may hold: clients' own, and those that were sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import RECOVERED
from fedre_privacy.core.artifact_schema import Holds, Role
from fedre_privacy.core.config import plain, plain_plugin
from fedre_privacy.core.types import AGGREGATE, Broadcast
from fedre_privacy.defenses.defended_modules import (
    changing_modules,
    defended_model_state,
    defended_state,
)
from fedre_privacy.defenses.learnt import begin_modules, changes_representations
from fedre_privacy.defenses.local_pass import ModelShapes
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.split import parameters_of
from fedre_privacy.protocols.blocks.averaging import load_state
from fedre_privacy.runs.run import Messages, Run
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.sandbox.module_recipes import EXTRACTOR, MODEL, LazyModule, Modules, Recipe


def through_shared(training: TrainSettings, settings: AttackSettings) -> bool:
    """Whether prototypes are sought or attacked that are those of a small model that was sent."""
    sought = settings.target == RECOVERED or settings.attack.answers == "prototypes"
    return sought and training.protocol.shared_model() is not None


def kept_extractors(
    run: Run,
    clients: Collection[int],
    rounds: Mapping[int, int],
    part: str = EXTRACTOR,
    *,
    defended: bool = False,
) -> Modules:
    """Extractors of a run by (client, round), or heads, read from disk when they are asked for.

    Args:
        rounds: round asked for, and the round whose extractor is given for it.
        defended: extractors make the changes that learnt defences make.
    """
    changes = changing(run) if defended and part == EXTRACTOR else ()

    def state(client: int, round: int) -> dict[str, Tensor]:
        own = _part(run.state(client, round), part)
        return defended_state(own, run.own_state(client, round)) if changes else own

    def recipe(client: int) -> Recipe:
        return dataclasses.replace(recipe_of(run, client, part), defenses=changes)

    return Modules(
        {
            (client, asked): LazyModule(recipe(client), partial(state, client, given))
            for asked, given in rounds.items()
            for client in clients
        }
    )


def changing(run: Run) -> tuple[dict[str, Any], ...]:
    """Settings of a run's defences, where one of them changes representations by what it learnt."""
    if not any(map(changes_representations, run.settings.defense)):
        return ()
    return tuple(plain_plugin(one) for one in run.acting)


def shared_extractors(run: Run, round: int, messages: Messages) -> Modules:
    """Extractors of the small models that clients uploaded in a round, by (client, round).

    Empty where a protocol shares no small model. Statistics of BatchNorm that were not sent are
    as they begin.
    """
    small = run.settings.protocol.shared_model()
    if small is None:
        return Modules({})
    recipe, part = recipe_of(run, 0, settings=small), recipe_of(run, 0, EXTRACTOR, small)

    def extractor(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _part(_with_buffers(recipe, params), EXTRACTOR)

    states = small_states_after(run, small, round, messages)
    return Modules(
        {
            (client, round): LazyModule(part, partial(extractor, own))
            for client, own in states.items()
        }
    )


def models_before(
    run: Run,
    round: int,
    clients: Collection[int],
    messages: Messages,
    *,
    defended: bool = False,
) -> Modules:
    """Whole models as clients started the round, where broadcasts hold all parameters.

    Args:
        defended: their heads are given what learnt defences make of representations, by modules
            that were kept of this round. Small models, and the sum of several clients whose
            defences have modules of their own, are left as they are.

    Raises:
        MissingInputError: defences have modules of their own, and the round was not kept; raised
            when the model is asked for.
    """
    small = run.settings.protocol.shared_model()
    if small is not None:
        states = small_states_before(run, small, clients, messages.of()[1], round)
        recipe = recipe_of(run, 0, settings=small)
        return Modules(
            {
                (client, round): LazyModule(recipe, partial(_with_buffers, recipe, state))
                for client, state in states.items()
            }
        )
    changes = changing(run) if defended else ()
    own_modules = bool(changes) and _have_modules(run)

    def own_too(client: int, state: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        return defended_model_state(state(), run.own_state(client, round) if own_modules else {})

    found: dict[tuple[int, int], LazyModule] = {}
    for broadcast in messages.of([round])[1]:
        sent = [a for a in broadcast.artifacts if Role.WHOLE in a.roles]
        if not sent:
            continue
        for client in sorted(set(clients) & {*broadcast.recipients, AGGREGATE}):
            plainly = recipe_of(run, client)
            state = partial(_with_buffers, plainly, sent[0].parameters({}))
            if not changes or (own_modules and client == AGGREGATE):
                found[client, round] = LazyModule(plainly, state)
                continue
            recipe = dataclasses.replace(plainly, defenses=changes)
            found[client, round] = LazyModule(recipe, partial(own_too, client, state))
    return Modules(found)


def _have_modules(run: Run) -> bool:
    """Whether defences of a run change representations by modules of their own."""
    shapes = ModelShapes(run.image_shape, run.record["dim"], len(run.record["classes"]))
    with torch.random.fork_rng(devices=[]):
        return bool(changing_modules(run.acting, begin_modules(run.acting, shapes)))


def recipe_of(
    run: Run, client: int, part: str = MODEL, settings: ModelSettings | None = None
) -> Recipe:
    """How the model of a client of a run is built, or another one for its images and classes."""
    return Recipe(
        settings=plain(settings or run.settings.model),
        client=max(client, 0),
        image_shape=run.image_shape,
        num_classes=len(run.record["classes"]),
        part=part,
    )


def _part(state: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    prefix = f"{part}."
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _with_buffers(recipe: Recipe, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a model whose parameters these are; buffers as they begin unless given."""
    model = recipe.build()
    load_state(model, params)
    return model.state_dict()


def small_states_before(
    run: Run,
    settings: ModelSettings,
    clients: Collection[int],
    broadcasts: Collection[Broadcast],
    round: int,
) -> dict[int, dict[str, Tensor]]:
    """Parameters of the small model that each client started the round from.

    A server that sends updates knows what it sent before: all its broadcasts are replayed.

    Args:
        broadcasts: all of the run; those of later rounds are left out.
    """
    earlier = sorted((b for b in broadcasts if b.round <= round), key=lambda b: b.round)
    found: dict[int, dict[str, Tensor]] = {}
    for client in clients:
        model = build_model(settings, 0, run.image_shape, len(run.record["classes"]))
        received = [b for b in earlier if client in b.recipients or client == AGGREGATE]
        if received and received[-1].round == round:
            found[client] = _replay_messages(received, model)
    return found


def small_states_after(
    run: Run, settings: ModelSettings, round: int, messages: Messages
) -> dict[int, dict[str, Tensor]]:
    """Parameters of the small model that each client's upload of a round makes.

    Left out are uploads of changes by clients whose model before the round was never sent.
    """
    uploads, _ = messages.of([round])
    sent = [(u.client, a) for u in uploads for a in u.artifacts if a.holds is not None]
    changed = [client for client, artifact in sent if artifact.holds == Holds.CHANGE]
    before = small_states_before(run, settings, changed, messages.of()[1], round) if changed else {}
    model = build_model(settings, 0, run.image_shape, len(run.record["classes"]))
    shapes = {name: value.shape for name, value in model.named_parameters()}
    found: dict[int, dict[str, Tensor]] = {}
    for client, artifact in sent:
        state = artifact.parameters(shapes)
        if artifact.holds == Holds.PARAMETERS:
            found[client] = state
        elif client in before:
            found[client] = {name: before[client][name] + state[name] for name in shapes}
    return found


def _replay_messages(received: Sequence[Broadcast], model: nn.Module) -> dict[str, Tensor]:
    """What a client holds after these messages."""
    shapes = {name: value.shape for name, value in model.named_parameters()}
    state: dict[str, Tensor] = parameters_of(model)
    for artifact in (a for broadcast in received for a in broadcast.artifacts):
        if artifact.holds is None:
            continue
        sent = artifact.parameters(shapes)
        if artifact.holds == Holds.PARAMETERS:
            state = sent
        elif artifact.holds == Holds.CHANGE:
            state = {name: state[name] + sent[name] for name in shapes}
    return state
