"""FedProto: prototypes instead of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import Counts, Prototypes
from fedre_privacy.core.config import knob
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.protocols.blocks import global_prototypes
from fedre_privacy.protocols.blocks.state import (
    Client,
    Message,
    Server,
    Setting,
    Task,
    only_artifact,
)
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, labelled_rows

from .base import Protocol, protocols


@protocols.register("fedproto")
@dataclass(frozen=True, kw_only=True)
class FedProto(Protocol):
    """Clients pull their representations towards the mean prototype of each class.

    Loss: cross-entropy + lambda * mean over B * d of (r - g_y)^2. The server averages prototypes
    over the clients that have the class; classes that nobody refreshed keep theirs. Predictions
    go to the nearest global prototype.

    Uploads:    Prototypes: d values and one label per class present at the client
    Reference:  Tan et al., FedProto, AAAI 2022.
    Deviations: the distance is a mean over features, as in the public code (the paper's sum is d
                times larger at the same weight), and the mean over clients is unweighted
                (``mean=samples`` as in the paper; clients then also send the number of samples
                behind each prototype). Prototypes come from an eval-mode pass after training, not
                from during it.
    """

    when_to_use = "the baseline of prototype protocols: different architectures, no shared head"
    uploads = (Prototypes,)
    broadcasts = (Prototypes,)
    training_only = True
    sums = "classes"
    headline = "post_broadcast"

    weight: float = knob(1.0, help="weight lambda of the pull towards global prototypes", ge=0)
    mean: str = knob(
        "equal",
        help="how clients count in a class's mean: equally, or by their samples of it",
        choices=("equal", "samples"),
    )
    predict: str = knob(
        "nearest",
        help="predictions by the nearest global prototype, or by the own head",
        choices=("nearest", "head"),
    )

    check = global_prototypes.check
    receive = global_prototypes.receive
    loss = global_prototypes.loss
    logits = global_prototypes.predict

    def traffic(self, sizes: Sizes) -> Exchange | None:
        if self.mean == "samples":  # counts come with every upload
            return None
        up = labelled_rows(sizes.pairs, sizes.dim)
        return Exchange(up, labelled_rows(sizes.clients * sizes.seen, sizes.dim))

    def __post_init__(self) -> None:
        if self.mean == "samples":
            self.declare(Prototypes, Counts)

    def start_server(self, setting: Setting) -> Server:
        table = torch.zeros(setting.num_classes, setting.dims[0])
        return Server(tensors={"prototypes": table, "present": torch.zeros(len(table)).bool()})

    def broadcast(self, server: Server) -> Message:
        labels = server.tensors["present"].nonzero().squeeze(1)
        return (Prototypes(server.tensors["prototypes"][labels], labels),) if len(labels) else ()

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        made = global_prototypes.prototypes_of(client, task)
        if self.mean == "equal":
            return (made,)
        counts = torch.bincount(client.upload_samples(task.setting.training).labels)
        return (made, Emission(Counts(counts[counts > 0])))

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        means, labels = global_prototypes.gather(uploads)
        table, present = server.tensors["prototypes"].clone(), server.tensors["present"].clone()
        weights = torch.ones(len(labels))
        if self.mean == "samples":
            weights = torch.cat(
                [only_artifact(upload.artifacts, Counts).values for upload in uploads]
            )
        total = torch.zeros(len(table)).index_add_(0, labels, weights.float())
        fresh = total > 0
        sums = torch.zeros_like(table).index_add_(0, labels, means * weights[:, None])
        table[fresh] = sums[fresh] / total[fresh, None]
        server.tensors |= {"prototypes": table, "present": present | fresh}
