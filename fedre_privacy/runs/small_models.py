"""The small models that some protocols share, before and after a round of local training."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor, nn

from fedre_privacy.core.contents import Holds
from fedre_privacy.core.types import AGGREGATE, Broadcast, Upload
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.split import parameters_of

from .run import Run


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
    run: Run,
    settings: ModelSettings,
    uploads: Collection[Upload],
    broadcasts: Collection[Broadcast],
) -> dict[tuple[int, int], dict[str, Tensor]]:
    """Parameters of the small model that each upload makes, by (client, round).

    Left out are uploads of changes by clients whose model before the round was never sent.

    Args:
        broadcasts: all of the run.
    """
    model = build_model(settings, 0, run.image_shape, len(run.record["classes"]))
    shapes = {name: value.shape for name, value in model.named_parameters()}
    found: dict[tuple[int, int], dict[str, Tensor]] = {}
    for upload in uploads:
        for artifact in upload.artifacts:
            if artifact.holds == Holds.PARAMETERS:
                found[upload.client, upload.round] = artifact.parameters(shapes)
            elif artifact.holds == Holds.CHANGE:
                before = small_states_before(
                    run, settings, [upload.client], broadcasts, upload.round
                ).get(upload.client)
                if before is not None:
                    moved = artifact.parameters(shapes)
                    state = {name: before[name] + moved[name] for name in shapes}
                    found[upload.client, upload.round] = state
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
