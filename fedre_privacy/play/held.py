"""Modules of a recorded run that an attacker may hold: clients' own, and those that were sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from torch import Tensor

from fedre_privacy.attacks.base import RECOVERED
from fedre_privacy.blocks.averaging import load_state
from fedre_privacy.core.config import plain
from fedre_privacy.core.contents import Role
from fedre_privacy.core.types import AGGREGATE
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.runs.run import Messages, Run
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.runs.small_models import small_states_after, small_states_before
from fedre_privacy.sealed.modules import EXTRACTOR, MODEL, Held, Modules, Recipe


def through_shared(training: TrainSettings, settings: AttackSettings) -> bool:
    """Whether prototypes are sought or attacked that are those of a small model that was sent."""
    sought = settings.target == RECOVERED or settings.attack.answers == "prototypes"
    return sought and training.protocol.shared_model() is not None


def kept_extractors(
    run: Run, clients: Collection[int], rounds: Mapping[int, int], part: str = EXTRACTOR
) -> Modules:
    """Extractors of a run by (client, round), or heads, read from disk when they are asked for.

    Args:
        rounds: round asked for, and the round whose extractor is given for it.
    """
    return Modules(
        {
            (client, asked): Held(
                recipe_of(run, client, part), lambda k=client, r=given: _part(run.state(k, r), part)
            )
            for asked, given in rounds.items()
            for client in clients
        }
    )


def shared_extractors(run: Run, round: int, messages: Messages) -> Modules:
    """Extractors of the small models that clients uploaded in a round, by (client, round).

    Empty where a protocol shares no small model. Statistics of BatchNorm that were not sent are
    as they begin.
    """
    small = run.settings.protocol.shared_model()
    if small is None:
        return Modules({})
    recipe, part = recipe_of(run, 0, settings=small), recipe_of(run, 0, EXTRACTOR, small)
    return Modules(
        {
            (client, round): Held(
                part, lambda state=state: _part(_with_buffers(recipe, state), EXTRACTOR)
            )
            for client, state in small_states_after(run, small, round, messages).items()
        }
    )


def models_before(run: Run, round: int, clients: Collection[int], messages: Messages) -> Modules:
    """Whole models as clients started the round, where broadcasts hold all parameters."""
    small = run.settings.protocol.shared_model()
    if small is not None:
        states = small_states_before(run, small, clients, messages.of()[1], round)
        recipe = recipe_of(run, 0, settings=small)
        return Modules(
            {
                (client, round): Held(recipe, partial(_with_buffers, recipe, state))
                for client, state in states.items()
            }
        )
    found: dict[tuple[int, int], Held] = {}
    for broadcast in messages.of([round])[1]:
        sent = [a for a in broadcast.artifacts if Role.WHOLE in a.roles]
        if not sent:
            continue
        for client in sorted(set(clients) & {*broadcast.recipients, AGGREGATE}):
            recipe = recipe_of(run, client)
            found[client, round] = Held(
                recipe, partial(_with_buffers, recipe, sent[0].parameters({}))
            )
    return Modules(found)


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
