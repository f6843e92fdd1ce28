"""A small model that every client trains beside its own (FML, FedAPEN, FedKD, FedMRL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import SmallModelState
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.split import SplitModel

from .averaging import load_state, state_of, weighted_mean
from .hooks import SharesModel, SharesSmallModel
from .state import Client, Message, Server, Setting, Task, only_artifact
from .whole_model import shares

NAME = "small"


def shared_model(self: SharesSmallModel) -> ModelSettings:
    """The protocol's `small`."""
    return self.small


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


def start_server(self: SharesSmallModel, setting: Setting) -> Server:
    """A fresh small model, the common start."""
    return Server({NAME: build(self.small, setting)})


def start_client(self: SharesSmallModel, client: Client, setting: Setting) -> None:
    """A copy to be overwritten by the first broadcast."""
    client.memory[NAME] = build(self.small, setting)


def broadcast(self: SharesModel, server: Server) -> Message:
    """All parameters of the small model; buffers only with the protocol's `buffers`."""
    return (SmallModelState(state_of(server.modules[NAME], buffers=self.sends_buffers())),)


def receive(self: object, client: Client, message: Message, task: Task) -> None:
    """Overwrite the client's copy."""
    load_state(client.memory[NAME], only_artifact(message, SmallModelState).params)


def modules(self: object, client: Client) -> Sequence[nn.Module]:
    """The private and the small model train together."""
    return (client.model, client.memory[NAME])


def upload(self: SharesModel, client: Client, task: Task) -> tuple[Emission, ...]:
    """All parameters of the trained copy; buffers as in `broadcast`."""
    state = state_of(client.memory[NAME], buffers=self.sends_buffers())
    return (Emission(SmallModelState(state)),)


def aggregate(self: object, server: Server, uploads: Sequence[Upload], task: Task) -> None:
    """Average the copies: equally, or by number of samples where those were sent."""
    states = [only_artifact(upload.artifacts, SmallModelState).params for upload in uploads]
    load_state(server.modules[NAME], weighted_mean(states, weights(server, uploads)))


def weights(server: Server, uploads: Sequence[Upload]) -> Tensor:
    """Equal weights, or numbers of samples where the server was told them."""
    if "counts" in server.tensors:
        return shares(server, uploads)
    return torch.ones(len(uploads))


def kl(student: Tensor, teacher: Tensor, *, detach: bool = True) -> Tensor:
    """KL(softmax(teacher) || softmax(student)), mean over the batch.

    Args:
        student, teacher: logits (b, C). detach: let no gradient into the teacher.
    """
    target = (teacher.detach() if detach else teacher).log_softmax(1)
    return F.kl_div(student.log_softmax(1), target, reduction="batchmean", log_target=True)
