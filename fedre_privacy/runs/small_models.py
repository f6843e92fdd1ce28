"""The small models that some protocols share, before and after a round of local training."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor, nn

from fedre_privacy.core.contents import Holds
from fedre_privacy.core.types import AGGREGATE, Broadcast
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.split import parameters_of

from .run import Messages, Run


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
            found[client] = _replayed(received, model)
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


def _replayed(received: Sequence[Broadcast], model: nn.Module) -> dict[str, Tensor]:
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
