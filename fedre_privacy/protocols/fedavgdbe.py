"""FedAvg with DBE: a personal bias of representations and a pull of their mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Counts, ModelState, RepStatistic
from fedre_privacy.core.config import knob
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.protocols.blocks import whole_model
from fedre_privacy.protocols.blocks.local import train_locally
from fedre_privacy.protocols.blocks.state import (
    SERVER_STATE,
    Client,
    Message,
    Server,
    Setting,
    Task,
    only_artifact,
)
from fedre_privacy.protocols.blocks.traffic import Count, Exchange, Sizes, floats

from .base import Protocol, protocols


class Shift(nn.Module):
    """A trainable vector added to every representation, zero at first."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, reps: Tensor) -> Tensor:
        return reps + self.bias


@protocols.register("fedavgdbe")
@dataclass(frozen=True, kw_only=True)
class FedAvgDBE(Protocol):
    """FedAvg whose clients keep a private shift of representations, while their mean is held back.

    logits = head(extractor(x) + z). The running mean mu of representations within a round is
    pulled to a consensus mean: kappa * mean_j (mu_j - g_j)^2 / 2. The consensus is formed once,
    from one trial pass of every client over the common initial model, which is then restored.

    Uploads:    ModelState: all parameters; once: the number of samples and d means
    Reference:  Zhang et al., Eliminating domain bias for federated learning in representation
                space, NeurIPS 2023.
    Deviations: momentum 1 and kappa 50 as in the authors' script; a public library's default of
                kappa = 0 switches the pull off.
    """

    when_to_use = "FedAvg for skewed labels, which also sends a mean of representations"
    uploads = (ModelState, Counts, RepStatistic)
    broadcasts = (ModelState,)
    headline = "post_broadcast"

    kappa: float = knob(50.0, help="weight of the pull of the mean representation", ge=0)
    momentum: float = knob(1.0, help="weight of a batch in the running mean", gt=0, le=1)
    shift: bool = knob(True, help="train the private shift z")
    buffers: bool = knob(False, help="average and send BatchNorm's running statistics as well")

    check = whole_model.check
    sends_buffers = whole_model.sends_buffers
    start_server = whole_model.start_server
    broadcast = whole_model.broadcast
    upload = whole_model.upload
    aggregate = whole_model.aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        sent, means = floats(sizes.clients * sizes.model), sizes.clients * sizes.dim
        return Exchange(sent, sent, Count(0, means, sizes.clients), Count(0, means))

    def start_client(self, client: Client, setting: Setting) -> None:
        # the consensus is formed before the first broadcast, from the model that will be in it
        with seeded_generators(setting.training.seed, SERVER_STATE):
            common = self.start_server(setting).modules["model"]
        client.model.load_state_dict(common.state_dict())
        client.memory["shift"] = Shift(client.model.dim).to(setting.device)

    def setup_upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        before = {k: v.clone() for k, v in client.model.state_dict().items()}
        training = task.setting.training
        client.tensors["mean"] = torch.zeros(client.model.dim, device=task.setting.device)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            reps = client.model.extractor(images)
            self._track(client, reps)
            return F.cross_entropy(client.model.head(reps), labels)

        train_locally(
            [client.model],
            loss,
            client.train,
            epochs=1,
            batch_size=training.batch_size,
            lr=training.lr,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            rng=task.rng("trial"),
            shuffle=not training.reference_loader,
        )
        client.model.load_state_dict(before)
        mean = client.tensors.pop("mean").detach()
        return (*whole_model.setup_upload(self, client, task), Emission(RepStatistic(mean)))

    def setup_aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        whole_model.setup_aggregate(self, server, uploads, task)
        share = whole_model.shares(server, uploads)
        means = torch.stack(
            [only_artifact(upload.artifacts, RepStatistic).mean for upload in uploads]
        )
        server.tensors["consensus"] = ((share / share.sum()) @ means.double()).float()

    def setup_broadcast(self, server: Server) -> Message:
        return (RepStatistic(server.tensors["consensus"]),)

    def setup_receive(self, client: Client, message: Message, task: Task) -> None:
        sent = only_artifact(message, RepStatistic).mean
        client.tensors["consensus"] = sent.to(task.setting.device, copy=True)

    def receive(self, client: Client, message: Message, task: Task) -> None:
        whole_model.receive(self, client, message, task)
        client.tensors["mean"] = torch.zeros_like(client.tensors["consensus"])

    def modules(self, client: Client) -> Sequence[nn.Module]:
        return (client.model, client.memory["shift"]) if self.shift else (client.model,)

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        reps = client.model.extractor(images)
        mean = self._track(client, reps)
        loss = F.cross_entropy(client.model.head(client.memory["shift"](reps)), labels)
        if self.kappa:
            loss = loss + self.kappa * 0.5 * F.mse_loss(mean, client.tensors["consensus"])
        return loss

    def _track(self, client: Client, reps: Tensor) -> Tensor:
        mean = (1 - self.momentum) * client.tensors["mean"] + self.momentum * reps.mean(0)
        client.tensors["mean"] = mean.detach()
        return mean

    def logits(self, client: Client, images: Tensor) -> Tensor:
        reps = client.memory["shift"](client.model.extractor(images))
        logits: Tensor = client.model.head(reps)
        return logits
