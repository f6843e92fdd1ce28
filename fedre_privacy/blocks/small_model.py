"""A small model that every client trains beside its own (FML, FedAPEN, FedKD, FedMRL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedre_privacy.core.artifacts import SmallModelState
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.split import SplitModel

from .averaging import load_state, state_of, weighted_mean
from .state import Client, Message, Server, Setting, Task, only
from .whole_model import shares

NAME = "small"


def shared_model(self: Any) -> ModelSettings:
    """The protocol's `small`."""
    settings: ModelSettings = self.small
    return settings


def build(settings: ModelSettings, setting: Setting) -> SplitModel:
    """Make the small model for a federation's images and classes."""
    model = build_model(settings, 0, setting.image_shape, setting.num_classes)
    return model.to(setting.device)


def small(client: Client) -> SplitModel:
    """The client's copy of the small model."""
    model = client.memory[NAME]
    if not isinstance(model, SplitModel):
        raise TypeError(f"client {client.id} holds no small model")
    return model


def start_server(self: Any, setting: Setting) -> Server:
    """A fresh small model, the common start."""
    return Server({NAME: build(self.small, setting)})


def start_client(self: Any, client: Client, setting: Setting) -> None:
    """A copy to be overwritten by the first broadcast."""
    client.memory[NAME] = build(self.small, setting)


def broadcast(self: Any, server: Server) -> Message:
    """All parameters of the small model; buffers only with the protocol's `buffers`."""
    return (SmallModelState(state_of(server.modules[NAME], buffers=self.sends_buffers())),)


def receive(self: Any, client: Client, message: Message, task: Task) -> None:
    """Overwrite the client's copy."""
    load_state(client.memory[NAME], only(message, SmallModelState).params)


def modules(self: Any, client: Client) -> Sequence[Any]:
    """The private and the small model train together."""
    return (client.model, client.memory[NAME])


def upload(self: Any, client: Client, task: Task) -> tuple[Emission, ...]:
    """All parameters of the trained copy; buffers as in `broadcast`."""
    state = state_of(client.memory[NAME], buffers=self.sends_buffers())
    return (Emission(SmallModelState(state)),)


def aggregate(self: Any, server: Server, uploads: Sequence[Upload], task: Task) -> None:
    """Average the copies: equally, or by number of samples where those were sent."""
    states = [only(upload.artifacts, SmallModelState).params for upload in uploads]
    load_state(server.modules[NAME], weighted_mean(states, weights(server, uploads)))


def weights(server: Server, uploads: Sequence[Upload]) -> Any:
    """Equal weights, or numbers of samples where the server was told them."""
    import torch

    if "counts" in server.tensors:
        return shares(server, uploads)
    return torch.ones(len(uploads))
