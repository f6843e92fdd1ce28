"""What happens before a training: data loaded and shared out, and refusals of what cannot work."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedre_privacy.active_server.base import Steering
from fedre_privacy.core.errors import FedreError, IncompatibleError
from fedre_privacy.core.memory import available_bytes
from fedre_privacy.core.rng import derive
from fedre_privacy.core.secrets import hidden_number
from fedre_privacy.core.types import Knowledge
from fedre_privacy.core.units import first_few, human_bytes, plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.defenses import statement
from fedre_privacy.defenses.base import Defense, FederationFacts
from fedre_privacy.defenses.learnt import is_trained
from fedre_privacy.federation import loop
from fedre_privacy.models.families import (
    ModelSettings,
    architecture_of,
    build_model,
    has_batch_norm,
    representation_dim,
)
from fedre_privacy.models.split import SplitModel
from fedre_privacy.models.zoo import architectures
from fedre_privacy.partition.base import ClientSplit, IntArray, split_clients
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.state import Setting

from .membership_game import NULL, deal_samples, draw_coins, draw_slots, plant_canaries
from .settings import RecordSettings, TrainSettings

SMALL = 512 * 2**20
"""Bytes that the models of all rounds may take for a run to keep them unasked."""


@dataclass(frozen=True, eq=False)
class PreparedTraining:
    """Data loaded, shared out and checked against the protocol; no model built yet.

    Defences have what follows from the federation filled in. `absent` are samples of the data set
    that are shared out and counted, and are in no batch (game ``null``). `shared_test` numbers the
    samples of the shared test set (see `draw_shared_test`). `record` says what is kept: the
    settings of the run, with the models of all rounds where these are small.
    """

    data: ImageData
    split: ClientSplit
    setting: Setting
    defense: tuple[Defense, ...]
    record: RecordSettings
    absent: frozenset[int] = frozenset()
    shared_test: IntArray = field(default_factory=lambda: np.empty(0, np.int64))


def prepare(settings: TrainSettings, device: torch.device) -> PreparedTraining:
    """Load the data, share it out, and refuse what cannot work before anything is trained.

    Raises:
        FedreError: of the data set, the partition, the model or the protocol.
    """
    training = settings.train
    data, shares = load_images(settings)
    dim = representation_dim(settings.model, data.image_shape)
    names = tuple(architecture_of(settings.model.name, k) for k in range(training.clients))
    counts = shares.class_counts(data.labels.numpy(), data.num_classes)
    setting = Setting(
        training=training,
        num_classes=data.num_classes,
        image_shape=data.image_shape,
        dims=(dim,) * training.clients,
        architectures=names,
        class_counts=tuple(tuple(int(n) for n in row) for row in counts),
        device=device,
        model=settings.model,
    )
    problems = settings.protocol.check(setting) + _too_few_samples(settings, data, counts)
    problems += _too_large(settings, setting) + _rounds_not_kept(settings)
    for one in settings.steering:
        problems += one.check(training.clients, settings.protocol.broadcasts)
        problems += _not_steered(one, settings, setting)
    if settings.defense and not problems:
        problems = statement.check_all(settings.defense, facts_of(settings, setting))
        problems += _not_learnt(settings)
    if problems:
        raise IncompatibleError(*problems)
    facts = facts_of(settings, setting)
    check_null(settings, facts)
    defense = tuple(d.settled(facts) for d in settings.defense)
    return PreparedTraining(
        data, shares, setting, defense, _record(settings, setting), absent_of(settings, data),
        draw_shared_test(settings, data, shares),
    )  # fmt: skip


def _not_learnt(settings: TrainSettings) -> list[str]:
    """Defences that are trained with the client's model, where nobody trains one."""
    if settings.protocol.trains():
        return []
    return [
        f"Defence '{one.name}' is learnt in local training, and clients of protocol "
        f"'{settings.protocol.name}' do not train. Choose another protocol, or leave it out."
        for one in settings.defense
        if is_trained(one)
    ]


def draw_shared_test(settings: TrainSettings, data: ImageData, shares: ClientSplit) -> IntArray:
    """Draw the shared test set out of all clients' test samples, as many of each class.

    A world of a membership game has none: its accuracy is no result.

    Returns:
        Numbers of at most `Training.shared_test` samples, ascending.
    """
    if settings.coins is not None:
        return np.empty(0, np.int64)
    seed = derive(settings.train.seed, "shared test")
    pool = np.random.default_rng(seed).permutation(np.sort(np.concatenate(shares.test)))
    labels = data.labels.numpy()[pool]
    place_in_class = np.empty(len(pool), np.int64)
    for label in np.unique(labels):
        own = labels == label
        place_in_class[own] = np.arange(own.sum())
    first = np.argsort(place_in_class, kind="stable")[: settings.train.shared_test]
    return np.sort(pool[first])


def _rounds_not_kept(settings: TrainSettings) -> list[str]:
    """Where `record.rounds` names rounds that never come, or leaves out what a server needs."""
    rounds, last = settings.record.rounds, settings.train.rounds
    problems = []
    if late := [r for r in rounds if r > last]:
        problems.append(
            f"record.rounds asks for round {first_few(late)}; the training has "
            f"{plural(last, 'round')}. Leave it out there, or raise --rounds."
        )
    if rounds and settings.steering:
        problems.append(
            f"Steering '{settings.steering[0].name}' reads all earlier rounds, and record.rounds "
            "leaves most of them out. Leave record.rounds out."
        )
    return problems


def _not_steered(one: Steering, settings: TrainSettings, setting: Setting) -> list[str]:
    """Models that are sent and that a steering cannot steer, with those that it can."""
    if Knowledge.ARCHITECTURE not in one.needs:
        return []

    def lack(model: ModelSettings, client: int) -> str:
        return one.lacks(_meta_model(model, setting, client))

    sent = settings.protocol.shared_model() or settings.model
    names = {architecture_of(sent.name, k): k for k in range(settings.train.clients)}
    why = {name: said for name, k in names.items() if (said := lack(sent, k))}
    if not why:
        return []
    fitting = []
    for name in architectures.names():
        with suppress(FedreError):  # made for other images, or not there
            if not lack(ModelSettings(name=name, dim=settings.model.dim), 0):
                fitting.append(name)
    return [
        f"Steering '{one.name}' cannot steer "
        + "; ".join(f"{name}, which {said}" for name, said in why.items())
        + f". Models that it can: {', '.join(fitting) or 'none of those built in'} (--models)."
    ]


def _meta_model(model: ModelSettings, setting: Setting, client: int) -> SplitModel:
    """A client's model whose parameters take no memory."""
    with torch.device("meta"):
        return build_model(model, client, setting.image_shape, setting.num_classes)


def load_images(settings: TrainSettings) -> tuple[ImageData, ClientSplit]:
    """The images of a training, with its canaries if it has any, and who trains on which.

    Raises:
        FedreError: of the data set or the partition.
    """
    data = settings.data.load()
    shares = shared_out(settings, data)
    if settings.coins is None:
        return data, shares
    slots = draw_slots(shares, data.labels, settings.coins)
    heads = draw_coins(shares, len(slots), settings.coins)
    present = torch.ones_like(heads) if settings.coins.game == NULL else heads
    return plant_canaries(data, slots, settings.coins), deal_samples(slots, present)


def absent_of(settings: TrainSettings, data: ImageData) -> frozenset[int]:
    """Samples that are counted and are in no batch: those whose coin says so in game ``null``."""
    if settings.coins is None or settings.coins.game != NULL:
        return frozenset()
    shares = shared_out(settings, data)
    slots = draw_slots(shares, data.labels, settings.coins)
    return frozenset(slots.one[~draw_coins(shares, len(slots), settings.coins)].tolist())


def check_null(settings: TrainSettings, facts: FederationFacts) -> None:
    """Refuse game ``null`` where an absent sample would be more than missing from batches.

    Raises:
        IncompatibleError: training is not private, or the data are used outside of it.
    """
    if settings.coins is None or settings.coins.game != NULL:
        return
    private = [one for one in settings.defense if one.trainer() is not None]
    covered = {kind for one in private if (c := one.cost(facts)) for kind in c.covers}
    if facts.training_only and private and set(facts.kinds_with_values) <= covered:
        return
    raise IncompatibleError(
        "Game 'null' leaves a sample out of the batches of private training; "
        + (
            f"'{facts.protocol}' uses samples elsewhere as well."
            if private
            else "this federation trains without it."
        ),
        next_step="Use --protocol fedavg --defense dp-sgd:clip=1,epsilon=8, or coins.game=pair.",
    )


def shared_out(settings: TrainSettings, data: ImageData) -> ClientSplit:
    """Who gets which samples, before any coin is tossed.

    Raises:
        FedreError: of the partition.
    """
    training, partition = settings.train, settings.partition
    seed: int | list[int] = training.seed if partition.seed is None else partition.seed
    if training.secret:
        hidden = hidden_number(training.secret, f"partition {seed}")
        seed = [hidden >> 32 * word & 0xFFFFFFFF for word in range(4)]
    return split_clients(
        partition, data.labels.numpy(), training.clients, seed, training.train_ratio
    )


def facts_of(settings: TrainSettings, setting: Setting) -> FederationFacts:
    """What the accounting of defences needs to know of a federation."""
    training, protocol = setting.training, settings.protocol
    joined = Counter(k for sent in possible_participants(settings).values() for k in sent)
    built: dict[str, nn.Module] = {}

    def model(client: int) -> nn.Module:
        name = setting.architectures[client]
        if name not in built:
            built[name] = _meta_model(settings.model, setting, client)
        return built[name]

    return FederationFacts(
        protocol=protocol.name,
        kinds=protocol.uploads,
        sums=protocol.sums,
        class_counts=setting.class_counts,
        participations=tuple(joined[k] for k in range(training.clients)),
        rounds=training.rounds,
        epochs=training.epochs,
        batch_size=training.batch_size,
        local_steps=protocol.local_steps,
        buffers=protocol.sends_buffers(),
        training_only=protocol.training_only,
        trains=protocol.trains(),
        inexact=protocol.inexact(),
        summing=_summing_protocols(),
        model=model,
    )


def possible_participants(settings: TrainSettings) -> dict[int, tuple[int, ...]]:
    """Who may take part in each round: whom an honest server draws, or anybody.

    A server that chooses may choose any client in every round, and clients account for that.
    """
    training = settings.train
    free = any(one.chooses for one in settings.steering)
    everyone = tuple(range(training.clients))
    return {
        r: everyone if free else loop.select(training, r) for r in range(1, training.rounds + 1)
    }


def _summing_protocols() -> tuple[str, ...]:
    """Protocols whose server can do with sums, with the setting that it takes."""
    kinds = {name: protocols.get(name) for name in protocols.names()}
    return tuple(
        name if kind.sums else f"{name} with protocol.{kind.sums_with}"
        for name, kind in kinds.items()
        if kind.sums or kind.sums_with
    )


def models_bytes(settings: TrainSettings, setting: Setting) -> int:
    """Parameters of all clients' models together (bytes)."""
    by_name: dict[str, int] = {}
    for client, name in enumerate(setting.architectures):
        if name not in by_name:
            model = _meta_model(settings.model, setting, client)
            by_name[name] = sum(p.numel() * p.element_size() for p in model.parameters())
    return sum(by_name[name] for name in setting.architectures)


def _record(settings: TrainSettings, setting: Setting) -> RecordSettings:
    """What a run keeps: models of all rounds too, where attacks combine them and they are small."""
    if not settings.keeps_small:
        return settings.record
    size = settings.train.rounds * models_bytes(settings, setting)
    return settings.keeping_all() if size <= SMALL else settings.record


def _too_large(settings: TrainSettings, setting: Setting) -> list[str]:
    """Clients' models that the machine cannot hold, without which nothing can be trained."""
    size, available = models_bytes(settings, setting), available_bytes()
    if available is None or size <= available:
        return []
    return [
        f"The models of {plural(len(setting.architectures), 'client')} ({settings.model.name}, "
        f"images of {'x'.join(map(str, setting.image_shape))}) take {human_bytes(size)}; the "
        f"machine has {human_bytes(available)} of memory left. Use fewer clients (--clients), "
        "smaller images, or a smaller model (--models)."
    ]


def _too_few_samples(
    settings: TrainSettings, data: ImageData, counts: NDArray[np.int64]
) -> list[str]:
    """Clients whose batches would hold one sample although their model has BatchNorm."""
    single: dict[str, list[int]] = {}
    for k, count in enumerate(counts.sum(1).tolist()):
        if settings.train.batch_size == 1 or count == 1:
            single.setdefault(architecture_of(settings.model.name, k), []).append(k)
    return [
        f"{plural(len(clients), 'client')} ({first_few(clients)}) would train on batches of one "
        f"sample, and their model ({name}) has BatchNorm, which needs two. Raise "
        "partition.min_samples or train.batch_size, or choose --models cnn4."
        for name, clients in single.items()
        if has_batch_norm(settings.model, clients[0], data.image_shape, data.num_classes)
    ]
