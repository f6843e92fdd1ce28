"""What one client does and what the server does in a round; they exchange only artifacts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Content
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import DivergedError, IncompatibleError
from fedre_privacy.core.host_copies import require
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.core.types import Emission, Mixture, Upload
from fedre_privacy.defenses.apply import (
    Collecting,
    apply_defenses,
    received_parameters,
    represent_with_defenses,
    trainer_of,
)
from fedre_privacy.defenses.base import Defense, Sending
from fedre_privacy.defenses.learnt import DefendedTraining, begin_modules, learns
from fedre_privacy.defenses.local_pass import ModelShapes
from fedre_privacy.models.norm import running_norms
from fedre_privacy.models.probe import channels_last
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.augment import augment_batch
from fedre_privacy.protocols.blocks.local import batches, recompute_statistics, train_locally
from fedre_privacy.protocols.blocks.state import Client, Message, Server, Setting, Task, Training

Defenses = Sequence[Defense]


def client_step(
    protocol: Protocol,
    client: Client,
    message: Message,
    task: Task,
    defenses: Defenses = (),
    trained: float | None = None,
) -> tuple[tuple[Emission, ...], float]:
    """Train one client and return what it uploads, on the CPU, and its mean training loss.

    Args:
        message: what the client received at the start of the round.
        defenses: applied in order, between the protocol's upload and what is returned.
        trained: the mean loss of a client that has been trained in this round already.

    Raises:
        DivergedError: the loss or a value to be uploaded is not finite.
        IncompatibleError: the protocol uploads a kind that it did not declare, or a defence
            cannot be applied.
    """
    training = task.setting.training
    trainer = trainer_of(defenses)
    loss = local_loss(protocol, client, training, message)

    with seeded_generators(training.seed, "client", client=client.id, round=task.round):
        modules, samples = protocol.modules(client), client.fitted
        if trainer is None:
            train = partial(
                train_locally, rng=task.rng("batches"), shuffle=not training.reference_loader
            )
        else:
            train = partial(
                trainer.fit,
                rng=task.secret_rng(client, "batches"),
                noise_rng=task.secret_rng(client, "defense training"),
                who=f"client {client.id} of protocol '{protocol.name}'",
                **({} if client.absent is None else {"absent": client.absent}),
            )
        decay = training.decay(task.round)
        mean_loss = trained
        if mean_loss is None:
            rates = [rate * decay for rate in protocol.learning_rates(client, training.lr)]
            with _with_terms(defenses, client, task, loss) as (defended, learnt, own_rates):
                mean_loss = train(
                    [*modules, *learnt],
                    defended,
                    samples,
                    epochs=training.epochs,
                    batch_size=training.batch_size,
                    lr=[*rates, *own_rates],
                    momentum=training.momentum,
                    weight_decay=training.weight_decay,
                    change=partial(augment_batch, training.augment, rng=task.rng("augment")),
                    clip_norm=protocol.clip_norm,
                    steps=protocol.local_steps,
                )
        if not math.isfinite(mean_loss):
            raise DivergedError(
                f"Training diverged: the loss of client {client.id} in round {task.round} is "
                f"{mean_loss} with lr {training.lr:g}.",
                next_step=_lower(training, modules),
            )
        if training.statistics == "recomputed":
            absent = client.absent
            own = samples if absent is None else samples.take(~absent[client.fitted_index])
            recompute_statistics(modules, own)
        sent = client_upload(protocol, client, message, task, defenses)
        for module in protocol.modules(client):  # with many clients they would double the memory
            module.zero_grad(set_to_none=True)
    return sent, mean_loss


def start_defenses(client: Client, defenses: Defenses, setting: Setting, seed: int) -> None:
    """Give a client the own modules of its learnt defences, with their first weights.

    Args:
        seed: of these weights.
    """
    if not any(map(learns, defenses)):
        return
    shapes = ModelShapes(setting.image_shape, client.model.dim, setting.num_classes)
    with seeded_generators(seed, "defense modules", client=client.id):
        made = begin_modules(defenses, shapes)
    home = next(client.model.parameters()).device
    client.memory |= {name: module.to(home) for name, module in made.items()}


Loss = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def _with_terms(
    defenses: Defenses, client: Client, task: Task, loss: Loss
) -> Iterator[tuple[Loss, Sequence[nn.Module], Sequence[float]]]:
    """A loss with the terms of learnt defences, their modules that it trains, and step sizes."""
    if not any(map(learns, defenses)):
        yield loss, (), ()
        return
    training = task.setting.training
    taking_part = DefendedTraining(
        defenses, client.model.extractor, client.model.head, client.memory,
        partial(task.secret_rng, client), round=task.round, rounds=training.rounds,
    )  # fmt: skip
    own, rates = taking_part.trained(training.lr * training.decay(task.round))
    with taking_part.defended(loss) as defended:
        yield defended, own, rates


def local_loss(
    protocol: Protocol, client: Client, training: Training, message: Message
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a client's local training: batch images and labels to a scalar.

    With ``train.precision=bfloat16`` it is computed under autocast; parameters stay float32.
    """

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        if training.precision != "bfloat16":
            return protocol.loss(client, images, labels, message)
        with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
            return protocol.loss(client, images, labels, message)

    return loss


def client_upload(
    protocol: Protocol, client: Client, message: Message, task: Task, defenses: Defenses = ()
) -> tuple[Emission, ...]:
    """What a client that has been trained uploads, after its defences; see `client_step`."""
    with represent_with_defenses(
        client.model.extractor, defenses, client.memory, partial(task.secret_rng, client)
    ) as seen:
        emissions = protocol.upload(client, task)
    origin = _took_part(protocol, client, task, defenses)
    made = [
        replace(e, mixture=origin) if _is_trained(e.artifact) and not e.mixture else e
        for e in emissions
    ]
    sent = _sent_copies(protocol, made, task, protocol.modules(client))
    return _defended_upload(protocol, client, sent, task, message, defenses, seen)


def order_of_batches(
    protocol: Protocol, client: Client, task: Task, device: torch.device | None = None
) -> Iterator[Tensor]:
    """Sample numbers (b,) of the batches that a client sees in a round of plain training."""
    training, count = task.setting.training, len(client.fitted)
    shuffle, rng = not training.reference_loader, task.rng("batches")
    drawn = batches(
        count, training.batch_size, training.epochs, rng, shuffle=shuffle, device=device
    )
    return islice(drawn, protocol.local_steps)


def _took_part(protocol: Protocol, client: Client, task: Task, defenses: Defenses) -> Mixture:
    """One row: every sample that was in a batch of this round's training, equally."""
    training, index, trainer = task.setting.training, client.fitted_index, trainer_of(defenses)
    if trainer is None:
        chosen = order_of_batches(protocol, client, task)
    else:
        training, rng = task.setting.training, task.secret_rng(client, "batches")
        drawn = trainer.batches(len(index), training.batch_size, training.epochs, rng)
        chosen = islice(drawn, protocol.local_steps)
    used = index[torch.cat(list(chosen)).unique()]
    if client.absent is not None:
        used = used[~client.absent[used]]
    share = torch.full((len(used),), 1 / max(len(used), 1))  # a Poisson sample may be empty
    return Mixture(torch.zeros_like(used), used, share, 1)


def _defended_upload(
    protocol: Protocol,
    client: Client,
    sent: tuple[Emission, ...],
    task: Task,
    message: Message,
    defenses: Defenses,
    seen: Collecting,
) -> tuple[Emission, ...]:
    """What leaves the client after its defences."""
    if not defenses:
        return sent
    out = []
    for number, emission in enumerate(sent):
        sending = Sending(
            protocol=protocol.name,
            client=task.client,
            round=task.round,
            rounds=task.setting.training.rounds,
            kinds=protocol.uploads,
            class_counts=task.setting.class_counts[task.client],
            received=received_parameters(type(emission.artifact), emission.artifact, message),
            mixture=emission.mixture,
            seed=task.secret(client),
        )
        out.append(apply_defenses(defenses, emission, sending, number=number, passes=seen.passes))
    return tuple(emission for emission in out if emission is not None)


def _is_trained(artifact: Artifact) -> bool:
    """Parameters, updates and gradients were made by all samples that took part in training."""
    return Content.PARAMETERS in artifact.content().values()


def _sent_copies(
    protocol: Protocol,
    emissions: Sequence[Emission],
    task: Task,
    trained: Sequence[nn.Module] = (),
) -> tuple[Emission, ...]:
    """Copies on the CPU of what a client sends, if it is declared and finite.

    Args:
        trained: the client's modules, where it trained before it sends.
    """
    training = task.setting.training
    for emission in emissions:
        if not isinstance(emission.artifact, protocol.uploads):
            raise IncompatibleError(
                f"Protocol '{protocol.name}' uploaded {type(emission.artifact).__name__} but "
                f"declares {', '.join(kind.__name__ for kind in protocol.uploads) or 'nothing'}."
            )
    copies = tuple(Emission(e.artifact.detached_copy(), e.mixture) for e in emissions)

    def refuse() -> None:
        if not _finite(copy.artifact for copy in copies):
            raise DivergedError(
                f"Training diverged: client {task.client} in round {task.round} is about to upload "
                f"values that are not finite, with lr {training.lr:g}.",
                next_step=_lower(training, trained),
            )

    for holds in _sums_are_finite(emission.artifact for emission in emissions):
        require(holds, refuse)
    return copies


def server_step(
    protocol: Protocol, server: Server, uploads: Sequence[Upload], task: Task
) -> Broadcasts:
    """Aggregate a round's uploads and return the next broadcasts, on the CPU.

    Raises:
        DivergedError: a value to be broadcast is not finite.
    """
    if uploads and any(upload.artifacts for upload in uploads):
        with seeded_generators(task.setting.training.seed, "server", round=task.round):
            protocol.aggregate(server, uploads, task)
    messages = next_broadcast(protocol, server)
    if not _finite((*messages.usual, *messages.resync)):
        raise DivergedError(
            f"Training diverged: after round {task.round} the server is about to broadcast values "
            "that are not finite.",
            next_step="Lower the server's step size (protocol.server.lr) or train.lr; where deep "
            "models with BatchNorm take few local steps: --set train.statistics=recomputed.",
        )
    return messages


@dataclass(frozen=True)
class Broadcasts:
    """What goes to clients that had the last broadcast, and to those that missed it."""

    usual: Message
    resync: Message


def next_broadcast(protocol: Protocol, server: Server) -> Broadcasts:
    """The messages that the server's present state stands for."""
    usual = tuple(artifact.detached_copy() for artifact in protocol.broadcast(server))
    if type(protocol).resync is Protocol.resync:
        return Broadcasts(usual, usual)
    return Broadcasts(usual, tuple(a.detached_copy() for a in protocol.resync(server)))


def first_upload(
    protocol: Protocol, client: Client, setting: Setting, defenses: Defenses = ()
) -> tuple[Emission, ...]:
    """What one client sends once, before the first round; usually nothing.

    Raises:
        DivergedError, IncompatibleError: as in `client_step`.
    """
    task = Task(setting, 0, client.id)
    with (
        on_device(client, setting),
        seeded_generators(setting.training.seed, "setup", client=client.id),
    ):
        with represent_with_defenses(
            client.model.extractor, defenses, client.memory, partial(task.secret_rng, client)
        ) as seen:
            made = protocol.setup_upload(client, task)
        sent = _sent_copies(protocol, made, task)
        return _defended_upload(protocol, client, sent, task, (), defenses, seen)


def first_uploads(
    protocol: Protocol, clients: Sequence[Client], setting: Setting, defenses: Defenses = ()
) -> list[Upload]:
    """What clients send once, before the first round; empty where the protocol has no such step."""
    if not begins_with_uploads(protocol):
        return []
    sent = {c.id: first_upload(protocol, c, setting, defenses) for c in clients}
    uploads = [Upload(k, 0, tuple(e.artifact for e in sent[k])) for k in sent]
    return uploads if any(upload.artifacts for upload in uploads) else []


def begins_with_uploads(protocol: Protocol) -> bool:
    """Whether clients send something before the first round."""
    return type(protocol).setup_upload is not Protocol.setup_upload


def first_answer(
    protocol: Protocol, server: Server, uploads: Sequence[Upload], setting: Setting
) -> Message:
    """Let the server take the first uploads, and return its answer to all clients."""
    protocol.setup_aggregate(server, uploads, Task(setting, 0))
    return tuple(artifact.detached_copy() for artifact in protocol.setup_broadcast(server))


@contextmanager
def on_device(client: Client, setting: Setting) -> Iterator[None]:
    """Bring a client's modules to the device for its step when they are kept off it.

    On a CPU convolutions are computed channels last, which takes a third off a round of `cnn4`
    (benchmarks/rounds.py); values and shapes are the same in either layout. An architecture that
    relies on its own layout keeps it (`models/probe.py`).
    """
    home = next(client.model.parameters()).device
    modules = [client.model, *client.memory.values()]
    if home.type == "cuda" == setting.device.type:  # looking is faster than moving
        modules = [one for one in modules if not _is_on_gpu(one)]
    for module in modules:
        module.to(setting.device)
        if setting.device.type == "cpu":
            channels_last(module)
    try:
        yield
    finally:
        for module in modules:
            module.to(home)


def _is_on_gpu(module: nn.Module) -> bool:
    first = next(module.parameters(), None)
    return first is not None and first.is_cuda


def _finite(artifacts: Iterable[Artifact]) -> bool:
    """A finite sum has finite terms; only a sum that is not costs the look at each of them."""
    given = list(artifacts)
    return all(map(bool, _sums_are_finite(given))) or all(
        bool(tensor.isfinite().all()) for one in given for tensor in one.tensors().values()
    )


def _sums_are_finite(artifacts: Iterable[Artifact]) -> list[Tensor]:
    """Whether the sum of all values is finite, () bool for each device that some are on.

    Counts and weights of an artifact may be on the host while the rest is on a GPU.
    """
    places: dict[torch.device, list[Tensor]] = defaultdict(list)
    for artifact in artifacts:
        for tensor in artifact.tensors().values():
            places[tensor.device].append(tensor)
    return [
        torch.stack([t.sum().float() for t in tensors]).sum().isfinite()
        for tensors in places.values()
    ]


def _lower(training: Training, trained: Iterable[nn.Module]) -> str:
    """The next step; where models have BatchNorm its statistics may be what diverged."""
    lower = min(training.lr / 3, Training().lr)
    step = f"Lower the step size, for example --set train.lr={lower:.2g}."
    if training.statistics == "running" and any(running_norms(one) for one in trained):
        step += " If that does not help: --set train.statistics=recomputed (BatchNorm's)."
    return step
