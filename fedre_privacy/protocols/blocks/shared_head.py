"""A classifier head that the server trains and every client receives (FedRE, FedGH, FedAllRep).

The functions that take a protocol first are hooks: a protocol assigns them in its class body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from fedre_privacy.core.artifacts import EntangledRep, HeadState
from fedre_privacy.core.config import knob
from fedre_privacy.core.optimisers import SGD
from fedre_privacy.core.types import AGGREGATE, Emission, Upload
from fedre_privacy.models.split import load_parameters, parameters_of

from .hooks import NamedProtocol
from .state import Client, Message, Server, Setting, Task, only_artifact


@dataclass(frozen=True, kw_only=True)
class HeadTraining:
    """How the server trains the shared head: plain SGD on (representation, label mix) pairs.

    A step on the sum over n pairs is n steps of the same size on their mean.
    """

    lr: float = knob(0.01, help="server step size", gt=0)
    batch_size: int = knob(10, help="server batch size", ge=1)
    epochs: int = knob(1, help="server passes over the round's pairs", ge=1)
    reduction: str = knob("mean", help="loss over the pairs of a batch", choices=("sum", "mean"))


class TrainsHead(Protocol):
    """A protocol with a `server` group of settings."""

    @property
    def server(self) -> HeadTraining:
        """How its server trains the head."""
        ...


def check(self: NamedProtocol, setting: Setting) -> list[str]:
    """A shared head needs the same representation length everywhere."""
    if len(set(setting.dims)) == 1:
        return []
    lengths = ", ".join(
        f"client {k} ({name}): {dim}"
        for k, (name, dim) in enumerate(zip(setting.architectures, setting.dims, strict=True))
    )
    return [
        f"Protocol '{self.name}' shares one head, so every client needs the same representation "
        f"length; got {lengths}. Set model.dim, for example --set model.dim=512."
    ]


def start_server(self: object, setting: Setting) -> Server:
    """A fresh random head Linear(d, C) that no client owns."""
    head = nn.Linear(setting.dims[0], setting.num_classes).to(setting.device)
    return Server({"head": head})


def broadcast(self: object, server: Server) -> Message:
    """The head's parameters."""
    return (HeadState(parameters_of(server.modules["head"])),)


def receive(self: object, client: Client, message: Message, task: Task) -> None:
    """Overwrite the client's head."""
    load_parameters(client.model.head, only_artifact(message, HeadState).params)


def upload(self: object, client: Client, task: Task) -> tuple[Emission, ...]:
    """The client's head."""
    return (Emission(HeadState(parameters_of(client.model.head))),)


def super_pair(uploads: Sequence[Upload]) -> Upload:
    """One entangled pair in place of a round's: their mean, whose weights sum to one as well."""
    sent = [a for upload in uploads for a in upload.artifacts if isinstance(a, EntangledRep)]
    rep = torch.stack([pair.rep for pair in sent]).double().mean(0).float()
    encoding = torch.stack([pair.encoding for pair in sent]).double().mean(0).float()
    return Upload(AGGREGATE, uploads[0].round, (EntangledRep(rep, encoding),))


def aggregate(self: TrainsHead, server: Server, uploads: Sequence[Upload], task: Task) -> None:
    """Train the head on every uploaded row and its label encoding.

    The loss is the cross-entropy with soft targets, -sum_c y_c log softmax(head(r))_c, which
    equals the weighted sum of hard cross-entropies (FedRE, Algorithm 1).
    """
    head, settings = server.modules["head"], self.server
    reps, encodings = [], []
    for upload in uploads:
        for artifact in upload.artifacts:
            rows, labels = artifact.rows(), artifact.encodings(task.setting.num_classes)
            if rows is not None and labels is not None:
                reps.append(rows)
                encodings.append(labels)
    device = task.setting.device
    inputs, targets = torch.cat(reps).to(device), torch.cat(encodings).to(device)
    optimiser = SGD(head.parameters(), lr=settings.lr)
    rng = task.rng("server")
    for _ in range(settings.epochs):
        order = torch.randperm(len(inputs), generator=rng).to(device)
        for index in order.split(settings.batch_size):
            loss = nn.functional.cross_entropy(
                head(inputs[index]), targets[index], reduction=settings.reduction
            )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
