"""FPL: cluster prototypes and unbiased prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Counts, ModelState, Prototypes
from fedre_privacy.core.config import knob
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.protocols.blocks import global_prototypes, whole_model
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


@protocols.register("fpl")
@dataclass(frozen=True, kw_only=True)
class FPL(Protocol):
    """Several cluster prototypes a class for contrast, and their mean for consistency.

    The server clusters each class's prototypes with FINCH and sends every cluster's mean. Loss:
    cross-entropy + contrast (softmax of cosine / tau over all cluster prototypes, the own class's
    summed in the numerator) + mean squared distance to the mean of the own class's clusters.

    Uploads:    Prototypes: d values and one label per class present at the client
    Reference:  Huang et al., Rethinking federated learning with domain shift, CVPR 2023.
    Deviations: networks are not averaged, as the FedRE comparison counts prototypes only
                (``aggregate_model`` averages them by sample count, as the official code does);
                prototypes come from an eval-mode pass. Classes that nobody refreshed keep their
                clusters.
    """

    when_to_use = "prototypes under domain shift: several clusters a class"
    uploads = (Prototypes,)
    broadcasts = (Prototypes, ModelState)
    training_only = True

    tau: float = knob(0.02, help="temperature of the contrast", gt=0)
    aggregate_model: bool = knob(False, help="send and average whole models as well")

    setup_aggregate = whole_model.setup_aggregate

    def traffic(self, sizes: Sizes) -> Exchange | None:
        if self.aggregate_model:
            return None
        down = None  # as many clusters as the server finds
        if sizes.clusters is not None:
            down = labelled_rows(sizes.clients * sizes.clusters, sizes.dim)
        return Exchange(labelled_rows(sizes.pairs, sizes.dim), down)

    def __post_init__(self) -> None:
        if self.aggregate_model:
            self.declare(Prototypes, ModelState, Counts)

    def check(self, setting: Setting) -> list[str]:
        if self.aggregate_model:
            return whole_model.check(self, setting)
        return global_prototypes.check(self, setting)

    def start_server(self, setting: Setting) -> Server:
        server = whole_model.start_server(self, setting) if self.aggregate_model else Server()
        none = torch.zeros(0, dtype=torch.int64)
        server.tensors |= {"clusters": torch.zeros(0, setting.dims[0]), "classes": none}
        return server

    def setup_upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        return whole_model.setup_upload(self, client, task) if self.aggregate_model else ()

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        model = whole_model.upload(self, client, task) if self.aggregate_model else ()
        return (*global_prototypes.upload(self, client, task), *model)

    def broadcast(self, server: Server) -> Message:
        classes = server.tensors["classes"]
        model = whole_model.broadcast(self, server) if self.aggregate_model else ()
        return (
            *([Prototypes(server.tensors["clusters"], classes)] if len(classes) else ()),
            *model,
        )

    def receive(self, client: Client, message: Message, task: Task) -> None:
        if self.aggregate_model:
            whole_model.receive(self, client, message, task)
        if not any(isinstance(artifact, Prototypes) for artifact in message):
            return
        sent, device = only_artifact(message, Prototypes), task.setting.device
        client.tensors |= {
            "clusters": sent.means.to(device, copy=True),
            "classes": sent.labels.to(device, copy=True),
        }

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        reps = client.model.extractor(images)
        loss = F.cross_entropy(client.model.head(reps), labels)
        if "clusters" not in client.tensors:
            return loss
        clusters, classes = client.tensors["clusters"], client.tensors["classes"]
        own = labels[:, None] == classes
        known = own.any(1)
        similar = F.normalize(reps, dim=1) @ F.normalize(clusters, dim=1).T / self.tau
        numerator = similar.masked_fill(~own, -torch.inf).logsumexp(1)
        contrast = torch.where(known, similar.logsumexp(1) - numerator, 0.0)
        share = own.float() / own.sum(1, keepdim=True).clamp(min=1)
        consistency = (reps - share @ clusters).square().mean(1) * known
        total: Tensor = loss + (contrast + consistency).sum() / len(labels)
        return total

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        if self.aggregate_model:
            whole_model.aggregate(self, server, uploads, task)
        points, labels = global_prototypes.gather(uploads)
        old, old_classes = server.tensors["clusters"], server.tensors["classes"]
        stale = ~torch.isin(old_classes, labels)
        means, classes = [old[stale]], [old_classes[stale]]
        for label in labels.unique().tolist():
            clusters = cluster_means(points[labels == label])
            means.append(clusters)
            classes.append(torch.full((len(clusters),), label))
        order = torch.cat(classes).argsort(stable=True)
        server.tensors |= {
            "clusters": torch.cat(means)[order],
            "classes": torch.cat(classes)[order],
        }


def finch(points: Tensor) -> Tensor:
    """Cluster points (n, d) by cosine distance; return cluster numbers (n,) from 0.

    Of the nested partitions the coarsest one with more than one cluster is returned, or the first
    where that is already a single cluster. Equal distances go to the lower index.

    Reference: Sarfraz, Sharma, Stiefelhagen, Efficient parameter-free clustering using first
    neighbor relations, CVPR 2019.
    """
    labels = _first_neighbours(points)
    while True:
        count = int(labels.max()) + 1
        if count <= 2:
            return labels
        merged = _first_neighbours(_means(points, labels, count))[labels]
        if not 1 < int(merged.max()) + 1 < count:
            return labels
        labels = merged


def _means(points: Tensor, labels: Tensor, count: int) -> Tensor:
    sums = points.new_zeros((count, points.shape[1])).index_add_(0, labels, points)
    return sums / torch.bincount(labels, minlength=count)[:, None]


def cluster_means(points: Tensor) -> Tensor:
    """Mean of each FINCH cluster (q, d)."""
    if len(points) == 1:
        return points
    labels = finch(points)
    return _means(points, labels, int(labels.max()) + 1)


def _first_neighbours(points: Tensor) -> Tensor:
    """Connected components of the graph that links each point with its nearest one."""
    count = len(points)
    if count == 1:
        return torch.zeros(1, dtype=torch.int64)
    unit = F.normalize(points.double(), dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-torch.inf)
    nearest = similarity.argmax(1)
    links = scipy.sparse.csr_matrix(
        (np.ones(count), (np.arange(count), nearest.numpy())), (count, count)
    )
    return torch.from_numpy(
        scipy.sparse.csgraph.connected_components(links, directed=False)[1]
    ).long()
