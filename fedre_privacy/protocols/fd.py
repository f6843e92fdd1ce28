"""FD (FedDistill): mean outputs per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.core.artifacts import ClassLogits, Counts, Prototypes
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.protocols.blocks.local import outputs_of
from fedre_privacy.protocols.blocks.prototypes import class_means
from fedre_privacy.protocols.blocks.state import (
    Client,
    Message,
    Server,
    Setting,
    Task,
    only_artifact,
)
from fedre_privacy.protocols.blocks.traffic import Count, Exchange, Sizes, labelled_rows

from .base import Protocol, protocols


@protocols.register("fd")
@dataclass(frozen=True, kw_only=True)
class FD(Protocol):
    """Clients exchange the mean softmax output of each class and learn from the others'.

    Loss: cross-entropy + lambda * cross-entropy against the class's mean output of the other
    clients: the server sends the mean, the number of contributors and the round of each
    class's last refresh; a client removes its own part where it took part in that round.

    Uploads:    ClassLogits: C values and one label per class present at the client
    Reference:  Jeong et al., Communication-efficient on-device machine learning, 2018.
    Deviations: outputs are collected in eval mode after training. ``target=library`` is the
                public libraries' reading: raw logits, own part included; its loss is unbounded
                below. Classes that nobody refreshed keep their entry.
    """

    when_to_use = "distillation that shares the mean output of each class and no model"
    uploads = (ClassLogits,)
    broadcasts = (ClassLogits, Counts)
    training_only = True

    weight: float = knob(1.0, help="weight lambda of the distillation", ge=0)
    target: str = knob("others", help="whose outputs are learnt", choices=("others", "library"))

    def traffic(self, sizes: Sizes) -> Exchange:
        rows = sizes.clients * sizes.seen
        means = labelled_rows(rows, sizes.classes)
        extra = 2 * rows if self.target == "others" else 0  # contributors, and rounds of refreshing
        down = Count(means.paper, means.floats, means.integers + extra)
        return Exchange(labelled_rows(sizes.pairs, sizes.classes), down)

    def start_server(self, setting: Setting) -> Server:
        size = setting.num_classes
        none = torch.zeros(size, dtype=torch.int64)
        return Server(
            tensors={"outputs": torch.zeros(size, size), "counts": none, "refreshed": none.clone()}
        )

    def broadcast(self, server: Server) -> Message:
        counts = server.tensors["counts"]
        labels = counts.nonzero().squeeze(1)
        if not len(labels):
            return ()
        table = ClassLogits(server.tensors["outputs"][labels], labels)
        if self.target == "library":
            return (table,)
        return (table, Counts(torch.stack([counts, server.tensors["refreshed"]])[:, labels]))

    def receive(self, client: Client, message: Message, task: Task) -> None:
        sent, setting = only_artifact(message, ClassLogits), task.setting
        table = torch.zeros(setting.num_classes, setting.num_classes)
        usable = torch.zeros(setting.num_classes, dtype=torch.bool)
        table[sent.labels], usable[sent.labels] = sent.outputs, True
        if self.target == "others" and "mine" in client.tensors:
            counts, refreshed = torch.zeros(2, setting.num_classes, dtype=torch.int64)
            told = only_artifact(message, Counts).values
            if told.shape != (2, len(sent.labels)):
                raise IncompatibleError(
                    f"The server sent outputs of {len(sent.labels)} classes and counts of shape "
                    f"{list(told.shape)}; 'fd' needs two counts for each class.",
                    next_step="A steering must leave the classes of FD's table as they are.",
                )
            counts[sent.labels], refreshed[sent.labels] = told
            table, usable, counts, refreshed = (
                held.to(setting.device) for held in (table, usable, counts, refreshed)
            )
            mine, sent_in = client.tensors["mine"], client.tensors["sent_in"]
            own = usable & (sent_in == refreshed)
            alone = own & (counts < 2)
            rest = (counts[:, None] * table - mine) / (counts - 1).clamp(min=1)[:, None]
            table = torch.where(own[:, None], rest, table)
            usable = usable & ~alone
        client.tensors |= {"target": table.to(setting.device), "usable": usable.to(setting.device)}

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        logits = client.model(images)
        loss = F.cross_entropy(logits, labels)
        if not self.weight or "target" not in client.tensors:
            return loss
        known = client.tensors["usable"][labels]
        each = F.cross_entropy(logits, client.tensors["target"][labels], reduction="none")
        return loss + self.weight * torch.where(known, each, 0.0).mean()

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        classes = task.setting.num_classes
        samples = client.upload_samples(task.setting.training)
        outputs = outputs_of(client.model, samples)
        if self.target == "others":
            outputs = outputs.softmax(1)
        made = class_means(outputs, samples.labels, classes, on_host=samples.host_labels)
        table = only_artifact((made.artifact,), Prototypes)
        means, present = table.means, table.labels
        mine = outputs.new_zeros((classes, classes))
        sent_in = torch.full((classes,), -1, device=outputs.device)
        mine[present], sent_in[present] = means, task.round
        client.tensors |= {"mine": mine, "sent_in": sent_in}
        return (Emission(ClassLogits(means, present), made.mixture),)

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        sent = [only_artifact(upload.artifacts, ClassLogits) for upload in uploads]
        outputs, labels = torch.cat([s.outputs for s in sent]), torch.cat([s.labels for s in sent])
        counts = torch.bincount(labels, minlength=task.setting.num_classes)
        sums = torch.zeros_like(server.tensors["outputs"]).index_add_(0, labels, outputs)
        fresh = counts > 0
        mean = torch.where(
            fresh[:, None], sums / counts.clamp(min=1)[:, None], server.tensors["outputs"]
        )
        server.tensors |= {
            "outputs": mean,
            "counts": torch.where(fresh, counts, server.tensors["counts"]),
            "refreshed": torch.where(fresh, task.round, server.tensors["refreshed"]),
        }
