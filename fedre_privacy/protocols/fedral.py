"""FedRAL: a shared square matrix that turns representations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Counts, MatrixBlocks
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
from fedre_privacy.protocols.blocks.traffic import Count, Exchange, Sizes, floats

from .base import Protocol, protocols

BLOCKS = 4
"""Diagonal blocks of every client unless told otherwise."""


@protocols.register("fedral")
@dataclass(frozen=True, kw_only=True)
class FedRAL(Protocol):
    """Only a d x d matrix A is shared; a client uploads its diagonal blocks.

    logits = head(R + R A), trained with the whole local model. Client k uploads m_k blocks of size
    (d / m_k)^2; the server adds them up element by element with the weights n_k / n, so elements
    that few clients supply shrink (``aggregation=supplier-mean`` divides by their number instead).

    Uploads:    MatrixBlocks: d^2 / m_k parameters; the number of samples once
    Reference:  Yi et al., Federated representation angle learning (FedRAL).
    Deviations: the initial law of A is unpublished; N(0, 1/d) here, common to all. The broadcast is
                the diagonal blocks that cover every client's (all of A before the first round):
                the exact union of supports where the numbers of blocks divide one another, more
                than it elsewhere.
    """

    when_to_use = "different architectures that share only a matrix of relations between features"
    uploads = (MatrixBlocks, Counts)
    broadcasts = (MatrixBlocks,)
    training_only = True

    blocks: tuple[int, ...] = knob(
        (),
        help="number m of diagonal blocks; client k takes entry "
        "k modulo their number; each must divide d; empty: 4, or the nearest that does",
        ge=1,
    )
    aggregation: str = knob(
        "weighted", help="how elements are combined", choices=("weighted", "supplier-mean")
    )
    init: float = knob(1.0, help="standard deviation of A's entries times sqrt(d); 0: zeros", ge=0)
    train_matrix: bool = knob(True, help="train A at the clients")

    setup_upload = whole_model.setup_upload
    setup_aggregate = whole_model.setup_aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        counts = [self._count(k, sizes.dim) for k in range(sizes.clients)]
        up = sum(sizes.dim**2 // count for count in counts)
        down = sizes.clients * sizes.dim**2 // reduce(gcd, counts)
        return Exchange(floats(up), floats(down), Count(integers=sizes.clients))

    def check(self, setting: Setting) -> list[str]:
        problems = global_prototypes.check(self, setting)
        dim = setting.dims[0]
        for count in sorted(set(self.blocks)):
            if dim % count:
                problems.append(
                    f"Protocol 'fedral' cuts the {dim} x {dim} matrix into {count} equal diagonal "
                    f"blocks, and {count} does not divide {dim}. Nearest that does: "
                    f"{nearest_divisor(count, dim)}."
                )
        return problems

    def start_server(self, setting: Setting) -> Server:
        dim = setting.dims[0]
        return Server(tensors={"matrix": torch.randn(dim, dim) * self.init * dim**-0.5})

    def start_client(self, client: Client, setting: Setting) -> None:
        matrix = nn.Linear(client.model.dim, client.model.dim, bias=False)
        nn.init.zeros_(matrix.weight)  # a client that has not received A yet is its own model
        client.memory["matrix"] = matrix.to(setting.device)

    def broadcast(self, server: Server) -> Message:
        count = int(server.tensors.get("cover", torch.tensor(1)))
        return (MatrixBlocks(diagonal_blocks(server.tensors["matrix"], count)),)

    def receive(self, client: Client, message: Message, task: Task) -> None:
        matrix = torch.block_diag(*only_artifact(message, MatrixBlocks).blocks)
        with torch.no_grad():
            client.memory["matrix"].weight.copy_(matrix.T)  # type: ignore[operator]

    def modules(self, client: Client) -> Sequence[nn.Module]:
        return (client.model, client.memory["matrix"]) if self.train_matrix else (client.model,)

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        return F.cross_entropy(self.logits(client, images), labels)

    def logits(self, client: Client, images: Tensor) -> Tensor:
        reps = client.model.extractor(images)
        logits: Tensor = client.model.head(reps + client.memory["matrix"](reps))
        return logits

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        matrix = next(client.memory["matrix"].parameters()).detach().T
        return (
            Emission(MatrixBlocks(diagonal_blocks(matrix, self._count(client.id, len(matrix))))),
        )

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        share = whole_model.shares(server, uploads)
        if self.aggregation == "weighted":
            weights = share / share.sum()
        else:
            weights = torch.ones(len(uploads), dtype=torch.float64)
        total = torch.zeros_like(server.tensors["matrix"], dtype=torch.float64)
        supplied = torch.zeros_like(total)
        for upload, weight in zip(uploads, weights, strict=True):
            blocks = only_artifact(upload.artifacts, MatrixBlocks).blocks.double()
            total += weight * torch.block_diag(*blocks)
            supplied += torch.block_diag(*torch.ones_like(blocks))
        if self.aggregation == "supplier-mean":
            total = total / supplied.clamp(min=1)
        cover = reduce(gcd, {self._count(upload.client, len(total)) for upload in uploads})
        server.tensors |= {"matrix": total.float(), "cover": torch.tensor(cover)}

    def _count(self, client: int, dim: int) -> int:
        counts = self.blocks or (nearest_divisor(BLOCKS, dim),)
        return counts[client % len(counts)]


def nearest_divisor(count: int, of: int) -> int:
    """The divisor of a number that is nearest to another one, the smaller of two."""
    return min((m for m in range(1, of + 1) if of % m == 0), key=lambda m: (abs(m - count), m))


def diagonal_blocks(matrix: Tensor, count: int) -> Tensor:
    """The `count` diagonal blocks of a square matrix (r, r): (count, r / count, r / count)."""
    size = len(matrix) // count
    grid = matrix.reshape(count, size, count, size)
    return grid.diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()
