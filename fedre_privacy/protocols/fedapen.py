"""FedAPEN: an ensemble of a private and a shared model with a learned weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.core.artifacts import SmallModelState
from fedre_privacy.core.config import knob, section
from fedre_privacy.core.rng import stream
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.protocols.blocks import small_model, whole_model
from fedre_privacy.protocols.blocks.local import outputs_of
from fedre_privacy.protocols.blocks.small_model import kl
from fedre_privacy.protocols.blocks.state import Client, Message, Setting, Task
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, averaged_parameters

from .base import Protocol, protocols


@protocols.register("fedapen")
@dataclass(frozen=True, kw_only=True)
class FedAPEN(Protocol):
    """Private and shared model learn from labels, from each other, and from their mixture.

    Each loss: CE + KL to the other + CE of lambda * private + (1 - lambda) * shared logits, the
    other side detached. After each broadcast the client relearns lambda on a held-out 5 % of its
    training data. Predictions are the mixture with the shared model as broadcast.

    Uploads:    SmallModelState: all parameters of the shared model
    Reference:  Qin et al., FedAPEN, KDD 2023.
    Deviations: BatchNorm statistics of the shared model travel and are averaged too, as in the
                official code; no other protocol here does so by default.
    """

    when_to_use = "different architectures that share a small model and weigh both models' outputs"
    uploads = (SmallModelState,)
    broadcasts = (SmallModelState,)
    headline = "post_broadcast"

    held_out: float = knob(0.05, help="share of training data that lambda is learnt on", gt=0, lt=1)
    lambda_lr: float = knob(1e-3, help="step size of lambda", gt=0)
    lambda_epochs: int = knob(10, help="passes to relearn lambda", ge=0)
    buffers: bool = knob(True, help="average and send BatchNorm's running statistics as well")
    small: ModelSettings = section(ModelSettings(), help="the shared model")

    shared_model = small_model.shared_model
    sends_buffers = whole_model.sends_buffers
    start_server = small_model.start_server
    broadcast = small_model.broadcast
    modules = small_model.modules
    upload = small_model.upload
    aggregate = small_model.aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        return averaged_parameters(sizes, sizes.small, counted=False)

    def start_client(self, client: Client, setting: Setting) -> None:
        small_model.start_client(self, client, setting)
        count = len(client.train)
        rng = stream(setting.training.seed, "adaptability", client=client.id)
        order = torch.randperm(count, generator=rng)
        held = min(max(1, round(self.held_out * count)), count - 1)
        client.held = order[:held] if held else None
        client.tensors["lambda"] = torch.tensor(0.5)

    def receive(self, client: Client, message: Message, task: Task) -> None:
        small_model.receive(self, client, message, task)
        if client.held is None or task.round == 1:  # nothing has been learnt yet
            return
        held = client.train.take(client.held)
        mine, shared = outputs_of(client.model, held), outputs_of(small_model.small(client), held)
        share = client.tensors["lambda"].to(mine).requires_grad_()
        rng = task.rng("lambda")
        size = min(task.setting.training.batch_size, len(held))
        for _ in range(self.lambda_epochs):
            for index in torch.randperm(len(held), generator=rng).to(mine.device).split(size):
                mixed = share * mine[index] + (1 - share) * shared[index]
                (slope,) = torch.autograd.grad(F.cross_entropy(mixed, held.labels[index]), share)
                share = (share - self.lambda_lr * slope).detach().clamp(0, 1).requires_grad_()
        client.tensors["lambda"] = share.detach()

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        mine, shared = client.model(images), small_model.small(client)(images)
        share = client.tensors["lambda"].to(mine)
        private = share * mine + (1 - share) * shared.detach()
        common = share * mine.detach() + (1 - share) * shared
        return sum(
            (F.cross_entropy(logits, labels) for logits in (mine, shared, private, common)),
            kl(mine, shared) + kl(shared, mine),
        )

    def logits(self, client: Client, images: Tensor) -> Tensor:
        share = client.tensors["lambda"].to(images.device)
        shared = small_model.small(client)(images)
        mixed: Tensor = share * client.model(images) + (1 - share) * shared
        return mixed
