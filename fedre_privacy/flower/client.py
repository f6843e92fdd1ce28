"""One client of a federation of processes: its data, its model, and what it answers the server.

Everything that the client keeps is on disk before it answers, so a process that was killed and
started again goes on where it was, and a message that comes twice gets the same answer twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fedre_privacy import __version__
from fedre_privacy.core import files
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    FedreError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.core.types import Emission
from fedre_privacy.federation import checkpoint
from fedre_privacy.federation.accuracy import count
from fedre_privacy.federation.steps import (
    client_step,
    first_upload,
    on_device,
    start_defenses,
)
from fedre_privacy.protocols.blocks.state import Client, Message, Samples, Server, Task
from fedre_privacy.runs.initial_state import all_samples, build_client, shared_samples
from fedre_privacy.runs.kept_models import kept_state
from fedre_privacy.runs.preparation import prepare
from fedre_privacy.runs.resolution import require_resolved, resolve_training
from fedre_privacy.runs.run_writer import mixtures, mixtures_file
from fedre_privacy.runs.settings import TrainSettings

from .wire import ANSWER, FIRST, HELLO, SCHEMA, Order, Reply, order_of, pack, unpack

ACCEPTED = "accepted"
"""Folder of the settings of the runs that a client takes part in, ``RUN.yaml`` each."""

STATE = "state.safetensors"


class Worker:
    """Answers the server's messages; a client's folder holds everything it keeps.

    Args:
        folder: of this client alone. number: of the client, from 0.
    """

    def __init__(self, folder: Path, number: int, device: torch.device) -> None:
        self.folder, self.number, self.device = folder, number, device
        self._run: Participation | None = None

    def answer(self, data: bytes) -> bytes:
        """What the client answers to a message; an error of ours is an answer too."""
        try:
            head, messages = unpack(data)
            order = order_of(head)
            return self._taking_part(order).answer(order, messages)
        except FedreError as error:
            self._run = None  # what was done but not kept is forgotten: the disk counts
            told = (type(error).__name__, list(error.problems), error.next_step)
            return pack(Reply(received=-1, trained=-1, error=told))

    def _taking_part(self, order: Order) -> Participation:
        if order["client"] != self.number:
            raise IncompatibleError(
                f"The server wrote to client {order['client']}, but this is client {self.number}.",
                next_step="Register each client's key under the name client<number>.",
            )
        if (order["version"], order["schema"]) != (__version__, SCHEMA):
            raise IncompatibleError(
                f"The server runs fedre-privacy {order['version']} (messages of schema "
                f"{order['schema']}), client {self.number} {__version__} (schema {SCHEMA}).",
                next_step="Install the same version on both sides.",
            )
        if self._run is None or self._run.settings.run_name != order["run"]:
            settings = self._accepted(order["run"])
            place = self.folder / settings.run_name
            self._run = Participation(settings, self.number, place, self.device)
        self._run.check(order)
        return self._run

    def _accepted(self, name: str) -> TrainSettings:
        path = self.folder / ACCEPTED / f"{name}.yaml"
        if Path(name).name != name or not path.is_file():
            raise MissingInputError(
                f"Client {self.number} takes no part in a run named {name[:200]!r}.",
                next_step=f"Put the run's config.yaml there, as {path}, if it should.",
            )
        return read_settings(path)


def read_settings(path: Path) -> TrainSettings:
    """Settings of a training, named as their file is.

    Raises:
        ConfigError: other settings than the name says, or none.
    """
    loaded = load_yaml(path)
    problems: list[str] = []
    settings = require_resolved(resolve_training(loaded.values, loaded.where, problems), problems)
    if settings.run_name != path.stem:
        raise ConfigError(
            f"The settings in {path} are those of the run {settings.run_name}.",
            next_step="Give the file the name of the run, or the server the same settings.",
        )
    return settings


class Participation:
    """One client in one run, with its state in a folder.

    Args:
        folder: of this client and run.
    """

    def __init__(
        self, settings: TrainSettings, number: int, folder: Path, device: torch.device
    ) -> None:
        self.settings, self.folder = settings, folder
        prepared = prepare(settings, device)
        self.protocol, self.defenses = settings.protocol, prepared.defense
        self.record = prepared.record
        nothing = (0,) * prepared.setting.num_classes
        counts = tuple(
            own if k == number else nothing for k, own in enumerate(prepared.setting.class_counts)
        )
        self.setting = replace(prepared.setting, class_counts=counts)
        data = all_samples(prepared.data, device)
        shared = shared_samples(prepared, data)
        self.client: Client = build_client(settings, prepared, number, data, {}, shared)
        start_defenses(self.client, self.defenses, self.setting, settings.train.seed)
        self.received = self.trained = -1
        path = folder / STATE
        if path.is_file():
            checkpoint.put_back(files.read_tensors(path), [self.client], Server(), path)
            meta = files.read_metadata(path)
            try:
                self.received, self.trained = int(meta["received"]), int(meta["trained"])
            except (KeyError, ValueError):
                raise DamagedInputError(f"{path} is no state of a client.") from None
        else:
            self._keep_model(0, "b")

    def check(self, order: Order) -> None:
        """Refuse a server that has other data in mind."""
        own = (list(self.setting.image_shape), self.setting.num_classes)
        told = (order["image_shape"], order["num_classes"])
        if own != told:
            raise IncompatibleError(
                f"The server expects images {told[0]} of {told[1]} classes; client "
                f"{self.client.id} has {own[0]} of {own[1]}.",
                next_step="Give both sides the same data set.",
            )

    def answer(self, order: Order, messages: list[Message]) -> bytes:
        """What the client answers, once everything is on disk."""
        if order["ask"] == HELLO:
            return pack(self._reply())
        if order["ask"] == FIRST:
            return self._once(0, self._first)
        if order["ask"] == ANSWER:
            if self.received < 0 and messages[0]:
                self.protocol.setup_receive(self.client, messages[0], self._task(0))
            self.received = max(self.received, 0)
            self._save()
            return pack(self._reply())
        before = self.received
        for round, message in zip(order["rounds"], messages, strict=True):
            self._receive(round, message)
        if order["train"]:
            return self._once(order["train"], lambda: self._train(order, messages[-1]))
        if self.received != before:
            self._save()
        return pack(self._tested(order))

    def _task(self, round: int) -> Task:
        return Task(self.setting, round, self.client.id)

    def _reply(self) -> Reply:
        return Reply(received=self.received, trained=self.trained)

    def _tested(self, order: Order) -> Reply:
        reply = self._reply()
        if order["test"]:
            reply["right"] = self._count(self.client.test)
        if order["shared"] and self.client.shared is not None:
            reply["shared"] = self._count(self.client.shared)
        return reply

    def _count(self, samples: Samples) -> tuple[int, int]:
        found = count(self.protocol, self.client, self.setting, samples, self.defenses)
        return found.correct, found.total

    def _receive(self, round: int, message: Message) -> None:
        """Take a broadcast, if it is news."""
        if round <= self.received:
            return
        if message:
            with on_device(self.client, self.setting):
                self.protocol.receive(self.client, message, self._task(round))
            self._keep_model(round, "a")
        self.received = round

    def _first(self) -> bytes:
        emissions = first_upload(self.protocol, self.client, self.setting, self.defenses)
        self.trained = 0
        return pack(self._reply(), [tuple(e.artifact for e in emissions)])

    def _train(self, order: Order, message: Message) -> bytes:
        round = order["train"]
        with on_device(self.client, self.setting):
            emissions, loss = client_step(
                self.protocol, self.client, message, self._task(round), self.defenses
            )
        self._keep_mixtures(round, emissions)
        self._keep_model(round, "b")
        self.trained = round
        reply = self._tested(order)
        reply["loss"] = loss
        return pack(reply, [tuple(e.artifact for e in emissions)])

    def _once(self, round: int, work: Callable[[], bytes]) -> bytes:
        """Do a round's work, or give the answer again that was given to it before."""
        path = self._answer_file(round)
        if round > self.trained:
            files.write_bytes(path, answer := work())
            self._save()
            if round > 2:
                self._answer_file(round - 2).unlink(missing_ok=True)
            return answer
        if not path.is_file():
            raise IncompatibleError(
                f"The server asks client {self.client.id} for round {round}, but the client has "
                f"done round {self.trained} already and keeps the answers of two rounds.",
                next_step="Train again with --restart.",
            )
        return path.read_bytes()

    def _answer_file(self, round: int) -> Path:
        return self.folder / f"answer-{round:04d}"

    def _save(self) -> None:
        meta = {"received": str(self.received), "trained": str(self.trained)}
        tensors = checkpoint.checkpoint_state([self.client], Server())
        files.write_tensors(self.folder / STATE, tensors, metadata=meta)

    def _keep_mixtures(self, round: int, emissions: tuple[Emission, ...]) -> None:
        if self._keeps(round):
            kept = mixtures({self.client.id: emissions})
            with files.private():
                files.write_tensors(mixtures_file(self.folder, round), kept)

    def _keep_model(self, round: int, moment: str) -> None:
        """Keep the model as it is after an event, for the evaluator.

        Those before it are not needed any more, but where a round was to be kept meanwhile.

        Args:
            moment: "a": after the round's broadcast; "b": after its training.
        """
        if not self.settings.record.truth:
            return
        kept = sorted((self.folder / KEPT).glob("*.safetensors"))
        tensors = kept_state(self.client, self.defenses)
        files.write_tensors(kept_file(self.folder, round, moment), tensors)
        for path in kept:
            since = int(path.name[:6])
            if not any(self._keeps(r) for r in range(max(since, 1), round)) and since < round:
                path.unlink()

    def _keeps(self, round: int) -> bool:
        return self.record.truth and self.record.keeps(round, self.settings.train.rounds)


KEPT = "models"


def kept_file(folder: Path, round: int, moment: str) -> Path:
    """Where a client keeps its model as it is after an event."""
    return folder / KEPT / f"{round:06d}{moment}.safetensors"


def kept_model(folder: Path, round: int) -> Path:
    """The file with a client's model as it was when the uploads of a round were made."""
    upto = kept_file(folder, round, "b").name
    names = [p for p in sorted((folder / KEPT).glob("*.safetensors")) if p.name <= upto]
    if not names:
        raise MissingInputError(f"{folder} holds no model of round {round}.")
    return names[-1]
