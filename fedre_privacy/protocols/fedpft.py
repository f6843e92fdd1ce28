"""FedPFT: Gaussian mixtures of each class's representations."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import ClassStatistics, HeadState
from fedre_privacy.core.config import knob, section
from fedre_privacy.core.errors import DivergedError
from fedre_privacy.core.optimisers import SGD
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.protocols.blocks import shared_head
from fedre_privacy.protocols.blocks.class_statistics import FORMS, drawn_from, mixture_statistics
from fedre_privacy.protocols.blocks.local import represent
from fedre_privacy.protocols.blocks.state import Client, Server, Setting, Task, only_artifact
from fedre_privacy.protocols.blocks.traffic import Count, Exchange, Sizes, head_down

from .base import Protocol, protocols

PRECISIONS = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class DrawnTraining:
    """How the server trains a fresh head on representations that it draws."""

    lr: float = knob(0.01, help="server step size", gt=0)
    momentum: float = knob(0.9, help="of the server's SGD", ge=0, lt=1)
    batch_size: int = knob(128, help="server batch size", ge=1)
    epochs: int = knob(50, help="server passes over the representations drawn", ge=1)


@protocols.register("fedpft")
@dataclass(frozen=True, kw_only=True)
class FedPFT(Protocol):
    """Each client fits a Gaussian mixture to the representations of each of its classes.

    The server draws as many representations of each client and class as there were samples, trains
    a fresh head on them by cross-entropy and sends it. Extractors are public and stay as they are.
    One round is all that the paper has; in further ones the same is done anew.

    Uploads:    ClassStatistics: of each class of more than K samples K means, numbers of samples
                and covariances (full: d (d + 1) / 2 values; diagonal: d; spherical: 1)
    Reference:  Beitollahi et al., Parametric feature transfer, TMLR 2025.
    Deviations: one component with a full covariance, which is not fitted but computed; public code
                takes ten diagonal ones (``components=10``, ``covariance=diagonal``), with the same
                tolerances and float16. Weights come as numbers of samples. ``local=trained`` trains
                clients' models before, which the paper does not: for extractors of one's own.
    """

    when_to_use = "one round over a frozen backbone that shares a Gaussian mixture of each class"
    uploads = (ClassStatistics,)
    broadcasts = (HeadState,)
    training_only = True
    headline = "post_broadcast"

    components: int = knob(1, help="K, components of each class's mixture", ge=1)
    covariance: str = knob("full", help="of each component", choices=tuple(FORMS))
    precision: str = knob("float16", help="of means and covariances", choices=tuple(PRECISIONS))
    local: str = knob(
        "frozen",
        help="clients' models: as they are, or trained locally before every upload",
        choices=("frozen", "trained"),
    )
    server: DrawnTraining = section(DrawnTraining(), help="the server's head training")

    check = shared_head.check
    broadcast = shared_head.broadcast
    receive = shared_head.receive

    def traffic(self, sizes: Sizes) -> Exchange:
        up = None
        if sizes.class_sizes or not sizes.pairs:
            d = sizes.dim
            each = {"full": d * (d + 1) // 2, "diagonal": d, "spherical": 1}[self.covariance]
            rows = self.components * sum(n > self.components for n in sizes.class_sizes)
            numbers, half = rows * (d + each), self.precision == "float16"
            weights = rows if self.components > 1 else 0  # numbers of samples that are not whole
            up = Count(
                numbers,
                weights if half else numbers + weights,
                2 * rows - weights,
                numbers if half else 0,
            )
        return Exchange(up, head_down(sizes))

    def start_server(self, setting: Setting) -> Server:
        server = shared_head.start_server(self, setting)
        server.modules["fresh"] = copy.deepcopy(server.modules["head"])
        return server

    def trains(self) -> bool:
        return self.local != "frozen"

    def inexact(self) -> str:
        if self.components > 1:
            return "mixtures are fitted to a class as a whole (protocol.components=1 is not)"
        if self.precision != "float32":
            return f"they are rounded to {self.precision} (protocol.precision=float32 is not)"
        return ""

    def modules(self, client: Client) -> Sequence[nn.Module]:
        return (client.model,) if self.trains() else ()

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        samples = client.upload_samples(task.setting.training)
        reps = represent(client.model.extractor, samples)
        made = mixture_statistics(
            reps, samples.labels, self.components, self.covariance, task.rng("mixture")
        )
        if made is None:
            return ()
        sent, kind = only_artifact((made.artifact,), ClassStatistics), PRECISIONS[self.precision]
        spread = {name: values.to(kind) for name, values in sent.spread.items()}
        means = sent.means.to(kind)
        if not all(bool(values.isfinite().all()) for values in (means, *spread.values())):
            raise DivergedError(
                f"Statistics of client {client.id} are too large for {self.precision}.",
                next_step="Send them as float32 (--set protocol.precision=float32), or lower "
                "train.lr.",
            )
        return (replace(made, artifact=replace(sent, means=means, spread=spread)),)

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        rng, device = task.rng("server"), task.setting.device
        sent = [a for u in uploads for a in u.artifacts if isinstance(a, ClassStatistics)]
        if not sent:
            return
        drawn = [drawn_from(one, rng) for one in sent]
        reps = torch.cat([r for r, _ in drawn]).to(device)
        labels = torch.cat([y for _, y in drawn]).to(device)
        head = copy.deepcopy(server.modules["fresh"])
        optimiser = SGD(head.parameters(), lr=self.server.lr, momentum=self.server.momentum)
        for _ in range(self.server.epochs):
            order = torch.randperm(len(labels), generator=rng).to(device)
            for index in order.split(self.server.batch_size):
                loss = F.cross_entropy(head(reps[index]), labels[index])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
        server.modules["head"].load_state_dict(head.state_dict())
