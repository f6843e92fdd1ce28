"""A model that every client shares and the server averages (FedAvg and its kin).

The functions that take a protocol first are hooks: a protocol assigns them in its class body.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedre_privacy.core.artifacts import AdapterState, Counts, ModelState
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.models.adapters import has_adapters
from fedre_privacy.models.families import PRIVATE, build_model

from .averaging import load_state, state_of, weighted_mean
from .hooks import NamedProtocol, SharesModel, WithBuffers
from .state import Client, Message, Server, Setting, Task, only_artifact


def sends_buffers(self: WithBuffers) -> bool:
    """The protocol's setting `buffers`."""
    return bool(self.buffers)


def check(self: NamedProtocol, setting: Setting) -> list[str]:
    """Averaging whole models needs the same architecture and the same start everywhere."""
    if setting.model.init == PRIVATE:
        return [
            f"Protocol '{self.name}' sends every client the first model, so model.init=private has "
            "no meaning. Leave it out, or choose a protocol whose clients keep their models."
        ]
    if len(set(setting.architectures)) == 1:
        return []
    listed = ", ".join(f"client {k}: {name}" for k, name in enumerate(setting.architectures))
    return [
        f"Protocol '{self.name}' averages whole models, so every client needs the same "
        f"architecture; got {listed}. Choose one, for example --models cnn4."
    ]


def start_server(self: object, setting: Setting) -> Server:
    """A fresh model, which becomes every client's common start."""
    model = build_model(setting.model, 0, setting.image_shape, setting.num_classes)
    return Server({"model": model.to(setting.device)})


def broadcast(self: SharesModel, server: Server) -> Message:
    """All parameters; buffers only with the protocol's `buffers`."""
    return (model_state(server.modules["model"], self.sends_buffers()),)


def receive(self: object, client: Client, message: Message, task: Task) -> None:
    """Overwrite the client's model."""
    load_state(client.model, only_artifact(message, ModelState).params)


def upload(self: SharesModel, client: Client, task: Task) -> tuple[Emission, ...]:
    """All parameters after training; buffers as in `broadcast`."""
    return (Emission(model_state(client.model, self.sends_buffers())),)


def model_state(model: nn.Module, buffers: bool) -> ModelState:
    """All parameters of a model; those of adapters and what is trained beside them, if it has."""
    kind = AdapterState if has_adapters(model) else ModelState
    return kind(state_of(model, buffers=buffers))


def setup_upload(self: object, client: Client, task: Task) -> tuple[Emission, ...]:
    """The number of training samples, once."""
    return (Emission(Counts(torch.tensor([len(client.train)]))),)


def setup_aggregate(self: object, server: Server, uploads: Sequence[Upload], task: Task) -> None:
    """Keep the numbers of samples by client."""
    counts = torch.zeros(task.setting.training.clients, dtype=torch.int64)
    for upload in uploads:
        counts[upload.client] = only_artifact(upload.artifacts, Counts).values.sum()
    server.tensors["counts"] = counts


def shares(server: Server, uploads: Sequence[Upload]) -> torch.Tensor:
    """Weight of each upload: n_k over the total of those that took part."""
    return server.tensors["counts"][[upload.client for upload in uploads]].double()


def aggregate(self: object, server: Server, uploads: Sequence[Upload], task: Task) -> None:
    """Average by number of samples."""
    states = [only_artifact(upload.artifacts, ModelState).params for upload in uploads]
    mean = weighted_mean(states, shares(server, uploads))
    load_state(server.modules["model"], mean)
