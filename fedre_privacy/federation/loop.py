"""The one federated loop, for every protocol.

Round t: the clients selected for it, which have received broadcast t, train and upload; the
server aggregates; broadcast t + 1 goes to the clients selected next (to all after the last round,
or always with ``train.broadcast_to=all``).
Accuracy is measured at two moments: after local training (`post_local`) and after the following
broadcast (`post_broadcast`), over all clients, selected or not; of each client on its own test
samples, and now and then on a test set that all share (`shared_post_local`,
`shared_post_broadcast`).
"""

from __future__ import annotations

import math
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from fedre_privacy.active_server.base import NOTHING_HELD, ServerKnowledge, Steering
from fedre_privacy.active_server.behaviour import ServerBehaviour, same
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.events import Event, Report
from fedre_privacy.core.host_copies import one_wait
from fedre_privacy.core.precision import float32_products
from fedre_privacy.core.rng import stream
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Broadcast, Emission, Upload
from fedre_privacy.defenses.apply import left_of, visible
from fedre_privacy.defenses.base import Defense
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.state import Client, Message, Server, Setting, Task, Training

from . import checkpoint
from . import forked_clients as copies
from .accuracy import (
    MOMENTS,
    AccuracyCache,
    ClientAccuracy,
    Count,
    accuracy,
    columns,
    count,
    is_measured,
    measured_on_shared,
)
from .captured_passes import CapturedPasses
from .captured_steps import CapturedTraining
from .ledger import measure
from .recorder import Recorder, read_messages
from .steps import (
    Broadcasts,
    client_step,
    first_answer,
    first_uploads,
    next_broadcast,
    on_device,
    server_step,
    start_defenses,
)

CHECKPOINT_SECONDS = 10.0
"""A checkpoint is written at the first round's end after this long, and after this many times the
time that the last one took."""

ROUNDS_BEHIND = 3
"""Rounds whose messages may be on their way to the disk while a GPU trains."""

WORTH_COPIES_S = 0.1
"""Clients are spread over cores while that step takes longer; a copy takes some 20 ms."""

Row = dict[str, Any]
Keep = Callable[[int, Sequence[Client], dict[int, tuple[Emission, ...]]], None]


def select(training: Training, round: int) -> tuple[int, ...]:
    """Clients of a round, drawn without replacement, ascending."""
    count = max(1, int(training.join_ratio * training.clients + 1e-9))  # 0.29 * 100 is 28.99...
    order = torch.randperm(training.clients, generator=stream(training.seed, "select", round=round))
    return tuple(sorted(order[:count].tolist()))


Sent = dict[int, tuple[tuple[Artifact, ...], float]]
"""By client: what it uploads in a round, and its mean training loss."""


class Cohort(ABC):
    """All clients of a federation, in this process or elsewhere: what the loop asks of them."""

    clients: Sequence[Client] = ()
    """Clients whose state the server's checkpoint holds."""
    elsewhere: bool = False
    """Whether clients keep their own state, so that the server saves its own after every round."""

    @abstractmethod
    def first(self) -> list[Upload]:
        """What clients send once, before the first round; see `steps.first_upload`."""

    @abstractmethod
    def answered(self, answer: Message) -> None:
        """Hand all clients the answer to it."""

    @abstractmethod
    def resumed(self, folder: Path, done: int) -> None:
        """The training goes on after round `done`; messages until then are recorded in a folder."""

    @abstractmethod
    def receive(self, post: Post) -> None:
        """Hand every receiver its message."""

    @abstractmethod
    def train(self, post: Post) -> Sent:
        """Let the chosen clients train, and keep the evaluator's share of it."""

    @abstractmethod
    def evaluate(self, *, shared: bool = False) -> ClientAccuracy | None:
        """Accuracy of all clients as they are now.

        Args:
            shared: on the shared test set in place of their own; None where there is none.
        """


class LocalCohort(Cohort):
    """Clients in this process: one after another, one on each core, or by captured steps.

    Args:
        keep: called with (round, clients, emissions by client) while clients still hold the
            models that made the round's uploads.
        cores: of a CPU that clients are spread over; the numbers do not depend on it.
    """

    def __init__(
        self,
        protocol: Protocol,
        clients: Sequence[Client],
        setting: Setting,
        keep: Keep,
        defenses: Sequence[Defense] = (),
        cores: int = 1,
    ) -> None:
        self.protocol, self.clients, self.setting = protocol, clients, setting
        self.keep, self.defenses, self.cores = keep, defenses, cores
        for client in clients:
            start_defenses(client, defenses, setting, setting.training.seed)
        self.captured = CapturedTraining(protocol, setting, defenses)
        self.passes = CapturedPasses(protocol, setting, defenses)
        self._round_took = math.inf
        self._looking_took = 0.0
        self._accuracies: dict[bool, AccuracyCache] = {}

    def first(self) -> list[Upload]:
        return first_uploads(self.protocol, self.clients, self.setting, self.defenses)

    def answered(self, answer: Message) -> None:
        for client in self.clients:
            self.protocol.setup_receive(client, answer, Task(self.setting, 0, client.id))

    def resumed(self, folder: Path, done: int) -> None:
        """Nothing is left to do: the checkpoint held the clients too."""

    def receive(self, post: Post) -> None:
        post.deliver(self.protocol, self.clients)

    def train(self, post: Post) -> Sent:
        with float32_products(self.setting.device, tf32=self.setting.training.precision == "tf32"):
            return self._train(post)

    def _train(self, post: Post) -> Sent:
        defenses, round, chosen = self.defenses, post.round, post.chosen
        step = partial(client_step, defenses=defenses) if defenses else client_step
        trained = self.captured.train(self.clients, chosen, round)

        def take_part(k: int) -> copies.Done:
            client = self.clients[k]
            with on_device(client, self.setting), self.passes.of(client):
                task = Task(self.setting, round, k)
                return step(self.protocol, client, post.sent[k], task, trained=trained.get(k))

        began = time.monotonic()
        if self._spread(self._round_took, len(chosen)) and not trained:
            done = copies.train(take_part, self.clients, chosen, self.cores)
        else:
            with nullcontext() if defenses else one_wait():  # defences read what is sent
                done = {k: take_part(k) for k in chosen}
        self._round_took = time.monotonic() - began
        self.keep(round, self.clients, {k: emissions for k, (emissions, _) in done.items()})
        return {k: (tuple(e.artifact for e in sent), loss) for k, (sent, loss) in done.items()}

    def evaluate(self, *, shared: bool = False) -> ClientAccuracy | None:
        given = [client.shared if shared else client.test for client in self.clients]
        tests = [samples for samples in given if samples is not None]
        if len(tests) < len(self.clients):
            return None
        if shared not in self._accuracies:
            device = self.setting.device
            made = AccuracyCache(self.protocol, self.clients, tests, device, self.defenses)
            self._accuracies[shared] = made
        cache = self._accuracies[shared]

        def look(k: int) -> Count:
            client, defenses = self.clients[k], self.defenses
            return count(self.protocol, client, self.setting, tests[k], defenses, keep=cache.keeps)

        changed = cache.clients_to_measure()
        found = cache.count_by_heads(changed)
        left = [k for k in changed if k not in found]
        began = time.monotonic()
        if self._spread(self._looking_took, len(left)):
            found |= copies.count(look, self.clients, left, self.cores)
        else:
            found |= self.passes.count_correct(self.clients, left, tests)
            found |= {k: look(k) for k in left if k not in found}
        if len(left) == len(self.clients):
            self._looking_took = time.monotonic() - began
        return accuracy(cache.update(found))

    def _spread(self, took: float, clients: int) -> bool:
        """Whether a step is worth copies that took so long the last time."""
        return took > WORTH_COPIES_S and copies.useful(self.setting.device, clients, self.cores)


def run_rounds(
    protocol: Protocol,
    clients: Sequence[Client],
    server: Server,
    setting: Setting,
    *,
    keep: Keep,
    defenses: Sequence[Defense] = (),
    **given: Any,
) -> list[Row]:
    """Train a federation in this process; see `lead`, which gets the rest, and `LocalCohort`."""
    with single_threaded(setting.device) as cores:
        cohort = LocalCohort(protocol, clients, setting, keep, defenses, cores)
        return lead(protocol, cohort, server, setting, defenses=defenses, **given)


def lead(
    protocol: Protocol,
    cohort: Cohort,
    server: Server,
    setting: Setting,
    *,
    recorder: Recorder,
    checkpoints: Path,
    report: Report,
    resume: bool = False,
    on_row: Callable[[list[Row]], None] = lambda rows: None,
    defenses: Sequence[Defense] = (),
    steering: Sequence[Steering] = (),
    held: ServerKnowledge = NOTHING_HELD,
) -> list[Row]:
    """Train a federation and record every message; return one row of metrics per round.

    Args:
        on_row: called with all rows after every round.
        defenses: what clients do to their training and uploads, in order.
        steering: what a malicious server does to its broadcasts and its choice of clients, in
            order; its own state goes on as if it were honest.

    Raises:
        IncompatibleError: a steering breaks its contract.
    """
    training = setting.training
    conduct = ServerBehaviour(steering, training.seed, training.clients, setting.num_classes, held)
    sizes = [sum(counts) for counts in setting.class_counts]
    rows: list[Row] = []
    done = 0
    restored = checkpoint.load(checkpoints, cohort.clients, server) if resume else None
    if restored is not None:
        done, rows = restored
        recorder.resume(done)
        cohort.resumed(recorder.folder, done)
        if steering:
            conduct.saw(*read_messages(recorder.folder, range(done + 1)))
        post = Post(setting, done + 1, next_broadcast(protocol, server), conduct)
    else:
        first = cohort.first()
        if first:
            answer = first_answer(protocol, server, first, setting)
            if answer:
                cohort.answered(answer)
            everyone = tuple(range(training.clients))
            seen = visible(defenses, first, setting.class_counts)
            answered = [Broadcast(0, everyone, answer)] if answer else []
            recorder.write(0, seen, answered)
            conduct.saw(seen, answered)
        post = Post(setting, 1, next_broadcast(protocol, server), conduct)
        cohort.receive(post)
    last_saved, took = time.monotonic(), 0.0
    for round in range(done + 1, training.rounds + 1):
        started = time.monotonic()
        chosen = post.chosen
        made = cohort.train(post)
        uploads = [Upload(k, round, made[k][0]) for k in chosen]
        losses = [made[k][1] for k in chosen]
        sent = post.broadcasts()
        seen = visible(defenses, uploads, setting.class_counts)
        seen = conduct.upload_without_sybils(seen, uploads, sizes, partial(left_of, defenses))
        recorder.write(round, seen, sent)
        conduct.saw(seen, sent)
        up = measure((upload.artifacts, 1) for upload in uploads)
        down = measure((b.artifacts, len(b.recipients)) for b in sent)

        last = round == training.rounds
        looked = partial(_accuracies, cohort, training, round)
        post_local = looked()
        taken = conduct.taken(round, uploads, post.sent, post.honest)
        messages = server_step(protocol, server, taken, Task(setting, round))
        post = Post(setting, round + 1, messages, conduct)
        cohort.receive(post)
        if last:
            recorder.write(round + 1, [], post.broadcasts())
            recorder.save()
        post_broadcast = looked()

        row: Row = {"round": round, "loss": sum(losses) / len(losses), "clients": len(chosen)}
        for moment, (own, shared) in zip(MOMENTS, (post_local, post_broadcast), strict=True):
            row |= columns(moment, own, shared)
        for direction, traffic in (("up", up), ("down", down)):
            row[f"{direction}_scalars"] = traffic.scalars_complete
            row[f"{direction}_scalars_paper"] = traffic.scalars_paper
            row[f"{direction}_bytes"] = traffic.nbytes
        row["wall_s"] = time.monotonic() - started
        rows.append(row)
        on_row(rows)
        now = time.monotonic()
        due = cohort.elsewhere or now - last_saved > CHECKPOINT_SECONDS * max(1.0, took)
        if due and not last:
            recorder.save()
            checkpoint.save(checkpoints, cohort.clients, server, round=round, metrics=rows)
            last_saved = time.monotonic()
            took = last_saved - now
        headline = row[f"acc_{protocol.headline}"]
        progress = {"round": round, "of": training.rounds, "loss": row["loss"]}
        report(Event("train.round", {**progress, "accuracy": headline}))
    return rows


def _accuracies(
    cohort: Cohort, training: Training, round: int
) -> tuple[ClientAccuracy | None, ClientAccuracy | None]:
    """Accuracy on clients' own test samples and on the shared test set, where each is due."""
    own, shared = is_measured(training, round), measured_on_shared(training, round)
    return cohort.evaluate() if own else None, cohort.evaluate(shared=True) if shared else None


@dataclass(frozen=True)
class Post:
    """The broadcasts that open a round, and who gets which.

    Clients of the round before had its broadcast and get the usual message; the others missed it
    and get the one for resynchronisation (the same, for most protocols). A server that is not
    honest chooses other clients, or sends other messages.
    """

    setting: Setting
    round: int
    messages: Broadcasts
    conduct: ServerBehaviour

    @cached_property
    def chosen(self) -> tuple[int, ...]:
        """Clients that train in this round, ascending."""
        return self.conduct.participants(self.round, select(self.setting.training, self.round))

    @cached_property
    def receivers(self) -> tuple[int, ...]:
        """Clients of this round; everyone after the last, or with ``train.broadcast_to=all``."""
        training = self.setting.training
        if self.round > training.rounds or training.broadcast_to == "all":
            return tuple(range(training.clients))
        return self.chosen

    @cached_property
    def _clients_up_to_date(self) -> frozenset[int]:
        """Clients that had the broadcast of the round before."""
        training = self.setting.training
        if self.round <= 1:
            return frozenset()
        if training.broadcast_to == "all":
            return frozenset(range(training.clients))
        if not self.conduct.honest:
            return self.conduct.received(self.round - 1)
        return frozenset(select(training, self.round - 1))

    @cached_property
    def honest(self) -> dict[int, Message]:
        """What each receiver would get of an honest server."""
        usual, resync = self.messages.usual, self.messages.resync
        return {k: usual if k in self._clients_up_to_date else resync for k in self.receivers}

    @cached_property
    def sent(self) -> dict[int, Message]:
        """What each receiver gets."""
        if self.conduct.honest:
            return self.honest
        return {k: self.conduct.message(self.round, k, one) for k, one in self.honest.items()}

    def message(self, client: int) -> Message:
        """What one of the receivers gets."""
        return self.sent[client]

    def broadcasts(self) -> list[Broadcast]:
        """The messages with their recipients, for the record."""
        equal = operator.is_ if self.conduct.honest else same
        groups: list[tuple[Message, list[int]]] = []
        for k, message in self.sent.items():
            who = next((who for sent, who in groups if equal(sent, message)), None)
            if who is None:
                groups.append((message, who := []))
            who.append(k)
        return [Broadcast(self.round, tuple(who), message) for message, who in groups]

    def deliver(self, protocol: Protocol, clients: Sequence[Client]) -> None:
        """Hand every receiver its message."""
        for k, message in self.sent.items():
            if message:
                with on_device(clients[k], self.setting):
                    protocol.receive(clients[k], message, Task(self.setting, self.round, k))
