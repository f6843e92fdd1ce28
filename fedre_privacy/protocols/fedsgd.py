"""FedSGD: one gradient of one batch per client and round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import Counts, GradientState, ModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.protocols.blocks import whole_model
from fedre_privacy.protocols.blocks.averaging import weighted_mean
from fedre_privacy.protocols.blocks.state import Client, Server, Setting, Task, only_artifact
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, averaged_parameters

from .base import Protocol, protocols


@protocols.register("fedsgd")
@dataclass(frozen=True, kw_only=True)
class FedSGD(Protocol):
    """Each client uploads the gradient of one batch at the global model; the server steps.

    The gradient is that of the mean cross-entropy of one random batch of ``train.batch_size``
    samples (all of them where a client has fewer), in train mode. The server subtracts
    ``train.lr`` times the mean of the gradients, weighted by the clients' numbers of samples. The
    client's parameters stay as broadcast.

    Uploads:    GradientState: one value per parameter; the number of samples once
    Reference:  McMahan et al., Communication-efficient learning of deep networks from decentralized
                data, AISTATS 2017.
    Deviations: the paper takes all of a client's samples as one batch (set ``train.batch_size`` to
                the largest client). BatchNorm uses the batch's statistics; running ones stay at
                the client and are used to predict.
    """

    when_to_use = (
        "gradients of single batches: the setting in which gradient inversion was published"
    )
    uploads = (GradientState, Counts)
    broadcasts = (ModelState,)
    training_only = True
    sums = "samples"
    headline = "post_broadcast"
    local_steps = 1

    start_server = whole_model.start_server
    setup_upload = whole_model.setup_upload
    setup_aggregate = whole_model.setup_aggregate
    broadcast = whole_model.broadcast
    receive = whole_model.receive

    def traffic(self, sizes: Sizes) -> Exchange:
        return averaged_parameters(sizes, sizes.model)

    def check(self, setting: Setting) -> list[str]:
        problems = whole_model.check(self, setting)
        training, epochs = setting.training, setting.training.epochs
        if not training.plain_sgd:
            problems.append(
                "Protocol 'fedsgd' has no local training, so train.momentum, "
                "train.weight_decay and train.augment have no meaning. Leave them out."
            )
        if epochs != 1:
            problems.append(
                f"Protocol 'fedsgd' takes one batch per client and round, so train.epochs={epochs} "
                "has no meaning. Leave it at 1; raise train.rounds for more steps."
            )
        return problems

    def learning_rates(self, client: Client, lr: float) -> Sequence[float]:
        return (0.0,)

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        gradient = {}
        for name, parameter in client.model.named_parameters():
            if parameter.grad is None:
                raise IncompatibleError(
                    f"Parameter '{name}' of client {client.id} has no gradient: the loss does not "
                    "depend on it.",
                    next_step="Use a model all of whose parameters take part in its output.",
                )
            gradient[name] = parameter.grad.clone()
        client.model.zero_grad(set_to_none=True)
        return (Emission(GradientState(gradient)),)

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        sent = [only_artifact(upload.artifacts, GradientState).params for upload in uploads]
        mean = weighted_mean(sent, whole_model.shares(server, uploads))
        model, training = server.modules["model"], task.setting.training
        lr = training.lr * training.decay(task.round)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.sub_(mean[name].to(parameter), alpha=lr)
