"""FedGen: a server-side generator of representations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Counts, GeneratorState, HeadState, ModelState
from fedre_privacy.core.config import knob
from fedre_privacy.core.optimisers import Adam
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.models.split import load_parameters, parameters_of
from fedre_privacy.protocols.blocks import shared_head, whole_model
from fedre_privacy.protocols.blocks.averaging import weighted_mean
from fedre_privacy.protocols.blocks.state import (
    Client,
    Message,
    Server,
    Setting,
    Task,
    only_artifact,
)
from fedre_privacy.protocols.blocks.traffic import Count, Exchange, Sizes, floats

from .base import Protocol, protocols


class Generator(nn.Module):
    """Noise and a class to a representation.

    Shape: noise (b, m), labels (b,) to (b, d).
    """

    def __init__(self, noise: int, num_classes: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.noise, self.num_classes = noise, num_classes
        self.net = nn.Sequential(
            nn.Linear(noise + num_classes, hidden),
            nn.BatchNorm1d(hidden, track_running_stats=False),
            nn.ReLU(),
            nn.Linear(hidden, dim),
        )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        rows = torch.eye(self.num_classes, device=noise.device, dtype=noise.dtype)
        out: Tensor = self.net(torch.cat([noise, rows[labels]], 1))
        return out


@protocols.register("fedgen")
@dataclass(frozen=True, kw_only=True)
class FedGen(Protocol):
    """Heads are averaged, and clients also learn from representations that a generator makes up.

    The server trains the generator so that the averaged heads classify its output; classes are
    drawn from the pooled label distribution, for which clients send their class counts once. A
    client's loss: cross-entropy + cross-entropy of its head on generated representations.

    Uploads:    HeadState: C (d + 1) parameters; the class counts once
    Reference:  Zhu, Hong, Zhou, Data-free knowledge distillation for heterogeneous federated
                learning, ICML 2021.
    Deviations: no diversity loss and constant weights, as in the public libraries; noise is
                standard normal (``noise=uniform`` as in their code); the generator's BatchNorm
                uses batch statistics on both sides. Heads are averaged also where models agree
                (``average=model`` averages those, as a public library does).
    """

    when_to_use = (
        "heads only are shared, with a generator on the server; representations stay at home"
    )
    uploads = (HeadState, Counts)
    broadcasts = (HeadState, GeneratorState)
    headline = "post_broadcast"

    noise: str = knob("normal", help="law of the generator's noise", choices=("normal", "uniform"))
    hidden: int = knob(512, help="noise length and hidden width of the generator", ge=1)
    steps: int = knob(100, help="server steps of the generator per round", ge=0)
    server_lr: float = knob(0.005, help="Adam step size of the generator", gt=0)
    weight: float = knob(1.0, help="weight of generated representations at the client", ge=0)
    average: str = knob("head", help="what is averaged and sent", choices=("head", "model"))

    def traffic(self, sizes: Sizes) -> Exchange:
        shared = sizes.model if self.average == "model" else sizes.head
        sent = sizes.clients * shared
        width = self.hidden  # two linear layers, and BatchNorm between them
        generator = (width + sizes.classes) * width + width + 2 * width + (width + 1) * sizes.dim
        counts = Count(integers=sizes.clients * sizes.classes)
        return Exchange(floats(sent), Count(sent, sent + sizes.clients * generator), counts, counts)

    def __post_init__(self) -> None:
        if self.average == "model":
            self.declare(ModelState, Counts)

    @property
    def _shared_hooks(self) -> Any:
        """The hooks of what is averaged."""
        return whole_model if self.average == "model" else shared_head

    def check(self, setting: Setting) -> list[str]:
        problems: list[str] = self._shared_hooks.check(self, setting)
        return problems

    def start_server(self, setting: Setting) -> Server:
        server: Server = self._shared_hooks.start_server(self, setting)
        server.modules["generator"] = self._generator(setting)
        return server

    def start_client(self, client: Client, setting: Setting) -> None:
        client.memory["generator"] = self._generator(setting).requires_grad_(False)

    def _generator(self, setting: Setting) -> Generator:
        made = Generator(self.hidden, setting.num_classes, self.hidden, setting.dims[0])
        return made.to(setting.device)

    def setup_upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        labels = client.upload_samples(task.setting.training).labels
        counts = torch.bincount(labels, minlength=task.setting.num_classes)
        return (Emission(Counts(counts)),)

    def setup_aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        table = torch.stack([only_artifact(upload.artifacts, Counts).values for upload in uploads])
        server.tensors |= {"counts": table.sum(1), "classes": table.sum(0)}

    def setup_broadcast(self, server: Server) -> Message:
        return (Counts(server.tensors["classes"]),)

    def setup_receive(self, client: Client, message: Message, task: Task) -> None:
        client.tensors["classes"] = only_artifact(message, Counts).values.float()

    def broadcast(self, server: Server) -> Message:
        generator = GeneratorState(parameters_of(server.modules["generator"]))
        return (*self._shared_hooks.broadcast(self, server), generator)

    def receive(self, client: Client, message: Message, task: Task) -> None:
        self._shared_hooks.receive(self, client, message, task)
        load_parameters(client.memory["generator"], only_artifact(message, GeneratorState).params)

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        loss = F.cross_entropy(client.model(images), labels)
        if not self.weight or len(labels) < 2:
            return loss
        drawn = client.tensors
        if "drawn classes" not in drawn:
            drawn = self.step_draws(client, len(labels))
        classes, noise = (
            drawn[name].to(labels.device) for name in ("drawn classes", "drawn noise")
        )
        made = client.memory["generator"](noise, classes)
        return loss + self.weight * F.cross_entropy(client.model.head(made), classes)

    def step_draws(self, client: Client, count: int) -> dict[str, Tensor]:
        if not self.weight or count < 2:
            return {}
        classes, noise = self._draw(client.tensors["classes"], count, None)
        return {"drawn classes": classes, "drawn noise": noise}

    def _draw(
        self, classes: Tensor, count: int, rng: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Classes and noise for the generator; without a stream the seeded global one is used."""
        labels = torch.multinomial(classes.cpu().double(), count, True, generator=rng)
        draw = torch.randn if self.noise == "normal" else torch.rand
        return labels, draw(count, self.hidden, generator=rng)

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        sent: tuple[Emission, ...] = self._shared_hooks.upload(self, client, task)
        return sent

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        whole = self.average == "model"
        kind: type[ModelState | HeadState] = ModelState if whole else HeadState
        prefix = "head." if whole else ""
        states = [only_artifact(upload.artifacts, kind).params for upload in uploads]
        share = whole_model.shares(server, uploads)
        device, generator = task.setting.device, server.modules["generator"]
        weights = torch.stack([state[f"{prefix}weight"] for state in states]).to(device)
        biases = torch.stack([state[f"{prefix}bias"] for state in states]).to(device)
        mix = (share / share.sum()).float().to(device)
        optimiser = Adam(generator.parameters(), lr=self.server_lr)
        rng = task.rng("generator")
        count = max(2, task.setting.training.batch_size)  # BatchNorm needs two
        for _ in range(self.steps):
            labels, noise = self._draw(server.tensors["classes"], count, rng)
            labels = labels.to(device)
            made = generator(noise.to(device), labels)
            logits = torch.einsum("k,kcd,bd->bc", mix, weights, made) + mix @ biases
            loss = F.cross_entropy(logits, labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
        load_parameters(server.modules["model" if whole else "head"], weighted_mean(states, share))
