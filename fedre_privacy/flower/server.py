"""The server of a federation of processes: the one round loop over clients that are elsewhere."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from fedre_privacy import __version__
from fedre_privacy.core import files
from fedre_privacy.core.errors import FedreError, IncompatibleError
from fedre_privacy.core.events import Report
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Upload
from fedre_privacy.defenses.base import Defense
from fedre_privacy.federation import accuracy, loop
from fedre_privacy.federation.accuracy import ClientAccuracy
from fedre_privacy.federation.loop import Cohort, Post, Row, Sent
from fedre_privacy.federation.recorder import Recorder, read_messages
from fedre_privacy.federation.steps import begins_with_uploads
from fedre_privacy.models.families import architecture_of, representation_dim
from fedre_privacy.protocols.blocks.state import Message, Setting
from fedre_privacy.runs.initial_state import begin_server
from fedre_privacy.runs.run_writer import CHECKPOINTS, UPLOADS, mixtures_file, models_file
from fedre_privacy.runs.settings import TrainSettings
from fedre_privacy.runs.training import Work

from .client import ACCEPTED, kept_model
from .wire import ANSWER, FIRST, HELLO, SCHEMA, WORK, Order, Reply, pack, reply_of, unpack

Ask = Callable[[Mapping[int, bytes]], Mapping[int, bytes]]
"""Sends each client a message and returns what they answer; see `app.Posts`."""


class DataFacts(TypedDict):
    """What a server has to be told of the data: the size of images, the number of classes."""

    image_shape: tuple[int, int, int]
    num_classes: int


def refusal_reason(settings: TrainSettings) -> list[str]:
    """Why a training cannot have its clients elsewhere."""
    summing = [d.name for d in settings.defense if type(d).seen is not Defense.seen]
    problems = [
        f"Defence '{name}' lets the server see sums alone; with clients elsewhere the server gets "
        "single uploads, and no protocol for summing them is built in."
        for name in summing
    ]
    problems += [
        f"Steering '{one.name}' needs {', '.join(sorted(one.needs))}; "
        "with clients elsewhere the server holds messages alone. Leave out --engine flower."
        for one in settings.steering
        if one.needs
    ]
    if settings.record.rounds:
        problems.append(
            "record.rounds leaves out broadcasts that clients elsewhere need after an "
            "interruption. Leave it out."
        )
    if settings.train.together == "always":
        problems.append("train.together=always trains clients in one program; here each has one.")
    return problems


def serve(
    settings: TrainSettings,
    facts: DataFacts,
    folder: Path,
    ask: Ask,
    *,
    resume: bool,
    report: Report,
    on_row: Callable[[list[Row]], None],
) -> None:
    """Lead a federation of clients elsewhere, and record uploads and broadcasts in a folder.

    The server knows settings, the size of images and the number of classes, and nothing else of
    the clients' data.
    """
    training, shape = settings.train, facts["image_shape"]
    everyone = range(training.clients)
    setting = Setting(
        training=training,
        num_classes=facts["num_classes"],
        image_shape=shape,
        dims=(representation_dim(settings.model, shape),) * training.clients,
        architectures=tuple(architecture_of(settings.model.name, k) for k in everyone),
        class_counts=((0,) * facts["num_classes"],) * training.clients,
        device=torch.device("cpu"),
        model=settings.model,
    )
    with single_threaded(setting.device):  # as in one process
        loop.lead(
            settings.protocol,
            RemoteCohort(settings, setting, ask),
            begin_server(settings, setting),
            setting,
            recorder=Recorder(folder / UPLOADS),
            checkpoints=folder / CHECKPOINTS,
            report=report,
            resume=resume,
            on_row=on_row,
            steering=settings.steering,
        )


def serve_work(work: Work, ask: Ask) -> None:
    """Lead the training of a run whose clients are elsewhere."""
    setting = work.prepared.setting
    serve(
        work.settings, DataFacts(image_shape=setting.image_shape, num_classes=setting.num_classes),
        work.folder, ask, resume=work.resume, report=work.report, on_row=work.on_row,
    )  # fmt: skip


def with_clients(work: Work, places: Sequence[Path], lead: Callable[[], None]) -> None:
    """Train with clients that live in folders of this machine, and bring what an evaluator needs.

    Args:
        places: the folder of each client. lead: trains.

    Raises:
        IncompatibleError: settings that cannot have clients elsewhere.
        FedreError: what the training ended with, or a client that kept no model.
    """
    settings, record = work.settings, work.prepared.record
    if problems := refusal_reason(settings):
        raise IncompatibleError(*problems)
    own = [place / settings.run_name for place in places]
    for place, folder in zip(places, own, strict=True):
        if not work.resume:
            shutil.rmtree(folder, ignore_errors=True)
        files.write_yaml(place / ACCEPTED / f"{settings.run_name}.yaml", settings.plain())
    lead()
    if settings.record.truth:
        for round in range(1, settings.train.rounds + 1):
            if record.keeps(round, settings.train.rounds):
                _copy_truth(round, own, work.folder)
    for folder in own:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_truth(round: int, clients: Sequence[Path], folder: Path) -> None:
    """Put clients' models and the samples behind their uploads where a run keeps them."""
    models: dict[str, Tensor] = {}
    samples: dict[str, Tensor] = {}
    for k, own in enumerate(clients):
        state = files.read_tensors(kept_model(own, round))
        models |= {f"client{k}/{name}": value for name, value in state.items()}
        if mixtures_file(own, round).is_file():
            samples |= files.read_tensors(mixtures_file(own, round))
    files.write_tensors(models_file(folder, round), models)
    with files.private():
        files.write_tensors(mixtures_file(folder, round), samples)


class RemoteCohort(Cohort):
    """Clients in processes of their own, reached by messages.

    A broadcast is sent with the next thing that its receiver is asked for.
    """

    elsewhere = True

    def __init__(self, settings: TrainSettings, setting: Setting, ask: Ask) -> None:
        self.settings, self.setting, self.ask = settings, setting, ask
        self.everyone = range(setting.training.clients)
        self.pending: dict[int, dict[int, Message]] = defaultdict(dict)
        self.right: dict[int, tuple[int, int]] = {}
        self.shared: dict[int, tuple[int, int]] = {}

    def first(self) -> list[Upload]:
        if not begins_with_uploads(self.settings.protocol):
            return []
        replies = self._ask({k: self._order(k, FIRST) for k in self.everyone})
        uploads = [Upload(k, 0, replies[k][1][0]) for k in self.everyone]
        return uploads if any(upload.artifacts for upload in uploads) else []

    def answered(self, answer: Message) -> None:
        self._ask({k: self._order(k, ANSWER, {0: answer}) for k in self.everyone})

    def resumed(self, folder: Path, done: int) -> None:
        """Ask clients how far they are, and take up the broadcasts that they have not had.

        Raises:
            IncompatibleError: a client does not know of what it uploaded.
        """
        replies = self._ask({k: self._order(k, HELLO) for k in self.everyone})
        uploads, broadcasts = read_messages(folder)
        for upload in uploads:
            if upload.client >= 0 and replies[upload.client][0]["trained"] < upload.round:
                raise IncompatibleError(
                    f"Client {upload.client} has lost its state: it does not know of its upload "
                    f"of round {upload.round}.",
                    next_step="Restore the client's folder, or train again with --restart.",
                )
        for one in broadcasts:
            for k in one.recipients:
                if one.round > max(replies[k][0]["received"], 0):
                    self.pending[k][one.round] = one.artifacts

    def receive(self, post: Post) -> None:
        for k in post.receivers:
            message = post.message(k)
            if message:
                self.pending[k][post.round] = message

    def train(self, post: Post) -> Sent:
        self.receive(post)  # again, after a resume
        test = accuracy.is_measured(self.setting.training, post.round)
        shared = accuracy.measured_on_shared(self.setting.training, post.round)
        orders = {}
        for k in post.chosen:
            messages = {**self.pending.pop(k, {}), post.round: post.message(k)}
            orders[k] = self._order(k, WORK, messages, train=post.round, test=test, shared=shared)
            self.right.pop(k, None)
            self.shared.pop(k, None)
        replies = self._ask(orders)
        return {k: (replies[k][1][0], replies[k][0]["loss"]) for k in post.chosen}

    def evaluate(self, *, shared: bool = False) -> ClientAccuracy | None:
        known = self.shared if shared else self.right
        for k in self.pending:
            self.right.pop(k, None)
            self.shared.pop(k, None)
        orders = {
            k: self._order(k, WORK, self.pending.pop(k, {}), test=not shared, shared=shared)
            for k in self.everyone
            if k not in known
        }
        self._ask(orders)
        if shared and not known:
            return None
        return accuracy.accuracy([known[k] for k in self.everyone])

    def _order(
        self,
        client: int,
        ask: str,
        messages: Mapping[int, Message] | None = None,
        *,
        train: int = 0,
        test: bool = False,
        shared: bool = False,
    ) -> bytes:
        sent = dict(sorted((messages or {}).items()))
        head = Order(
            run=self.settings.run_name,
            client=client,
            version=__version__,
            schema=SCHEMA,
            image_shape=list(self.setting.image_shape),
            num_classes=self.setting.num_classes,
            ask=ask,
            rounds=list(sent),
            train=train,
            test=test,
            shared=shared,
        )
        return pack(head, list(sent.values()))

    def _ask(self, orders: Mapping[int, bytes]) -> dict[int, tuple[Reply, list[Message]]]:
        answers = dict(self.ask(orders)) if orders else {}
        replies = {}
        for k in orders:
            head, messages = unpack(answers.pop(k))  # the bytes go as tensors come
            try:
                reply = reply_of(head)
            except FedreError as error:
                told = (f"Client {k}: {problem}" for problem in error.problems)
                raise type(error)(*told, next_step=error.next_step) from None
            if "right" in reply:
                self.right[k] = reply["right"]
            if "shared" in reply:
                self.shared[k] = reply["shared"]
            replies[k] = (reply, messages)
        return replies
