"""What each client was sent in each round, with what it had to judge that by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from fedre_privacy.active_server.detectors.base import Receipt, no_gradients
from fedre_privacy.defenses.learnt import learns
from fedre_privacy.federation.steps import on_device, order_of_batches
from fedre_privacy.protocols.blocks.state import Client, Message, Task

from .initial_state import build_clients
from .preparation import PreparedTraining, prepare
from .run import Run


def receipts(run: Run, *, losses: bool = True) -> Iterator[Receipt]:
    """Every message that a client got at the start of a round, in the order of rounds.

    Losses at receipt are worked out again from the models that the run kept. They are left out
    where not every round's were kept, where a protocol keeps modules beside the model, or where a
    defence takes part in local training.

    Args:
        run: complete.

    Raises:
        FedreError: what was recorded is damaged, or the data cannot be loaded.
    """
    settings = run.settings
    training = settings.train
    uploads, broadcasts = run.messages().of()
    sent: dict[int, dict[int, Message]] = defaultdict(dict)
    for broadcast in broadcasts:
        for client in broadcast.recipients:
            sent[broadcast.round][client] = broadcast.artifacts
    uploaded: dict[int, list[Message]] = defaultdict(list)
    earlier: dict[int, list[Message]] = defaultdict(list)
    history: dict[int, list[float]] = defaultdict(list)
    known = losses and set(range(1, training.rounds)) <= set(run.kept_rounds())
    known = known and not any(map(learns, settings.defense))
    prepared = prepare(settings, torch.device("cpu")) if known else None
    clients = build_clients(settings, prepared) if prepared else []
    for round in range(1, training.rounds + 1):
        for client, message in sorted(sent[round].items()):
            gradients: Callable[[], Mapping[str, Tensor]] = no_gradients
            if prepared and not clients[client].memory:
                given = run, prepared, clients[client], round, message
                history[client].append(_loss(*given))
                gradients = partial(_gradients, *given)
            yield Receipt(
                client=client,
                round=round,
                message=message,
                earlier=tuple(earlier[client]),
                uploaded=tuple(uploaded[client]),
                losses=tuple(history[client]),
                share=training.join_ratio,
                gradients=gradients,
            )
            earlier[client].append(message)
        for upload in uploads:
            if upload.round == round:
                uploaded[upload.client].append(upload.artifacts)


def _loss(
    run: Run, prepared: PreparedTraining, client: Client, round: int, message: Message
) -> float:
    """Mean training loss on a client's own samples when the message has been taken up."""
    protocol = run.settings.protocol
    if round > 1:
        client.model.load_state_dict(dict(run.state(client.id, round - 1)))
    with on_device(client, prepared.setting), torch.no_grad():
        if message:
            protocol.receive(client, message, Task(prepared.setting, round, client.id))
        client.model.eval()
        images, labels = client.train.batch(slice(None))
        return float(protocol.loss(client, images, labels, message))


def _gradients(
    run: Run, prepared: PreparedTraining, client: Client, round: int, message: Message
) -> dict[str, Tensor]:
    """Norms (B,) of single samples' gradients of each weight; the message has been taken up."""
    protocol, own = run.settings.protocol, client.fitted
    first = next(order_of_batches(protocol, client, Task(prepared.setting, round, client.id)))
    weights = {name: p for name, p in client.model.named_parameters() if p.dim() > 1}
    found: dict[str, list[Tensor]] = {name: [] for name in weights}
    client.model.eval()
    with on_device(client, prepared.setting):
        for index in first.split(1):
            loss = protocol.loss(client, *own.batch(index), message)
            slopes = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            for name, slope in zip(weights, slopes, strict=True):
                norm = torch.zeros(()) if slope is None else slope.double().norm()
                found[name].append(norm.double().cpu())
    return {name: torch.stack(norms) for name, norms in found.items()}
