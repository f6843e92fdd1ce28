"""What clients and the server hold, and what a step is told: plain state, passed as arguments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import knob
from fedre_privacy.core.rng import Pieces, derive, secret, stream
from fedre_privacy.core.secrets import hidden_number
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.models.image_origin import ImageOrigin, note_origin
from fedre_privacy.models.split import SplitModel

from .augment import STEPS

A = TypeVar("A", bound=Artifact)


MOST = 1_000_000
"""Clients and rounds that a training may have at most."""
HASHED = 256
"""Images that are read at once for a hash."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the federation trains. Defaults are FedRE's common settings (Section 4)."""

    clients: int = knob(10, help="number of clients", ge=1, le=MOST)
    rounds: int = knob(20, help="communication rounds", ge=1, le=MOST)
    join_ratio: float = knob(1.0, help="share of clients selected per round", gt=0, le=1)
    epochs: int = knob(1, help="local epochs per round", ge=1)
    batch_size: int = knob(32, help="local batch size, the last short batch is dropped", ge=1)
    lr: float = knob(0.06, help="local SGD step size", gt=0)
    lr_decay: float = knob(
        1.0, help="factor on local step sizes after every round", gt=0, le=1, later=True
    )
    momentum: float = knob(
        0.0, help="of local SGD; it begins anew in every round", ge=0, lt=1, later=True
    )
    weight_decay: float = knob(
        0.0, help="of local SGD: added to gradients, times the parameters", ge=0, later=True
    )
    augment: str = knob(
        "none",
        help="random changes of the images of every batch of local training: mirrored, shifted by "
        "up to 4 pixels, a rectangle erased; never behind prototypes or accuracy",
        choices=tuple(STEPS),
        later=True,
    )
    statistics: str = knob(
        "running",
        help="BatchNorm's statistics after local training: as they ran along, or taken anew from "
        "the client's own images, which deep models need where a client takes few steps",
        choices=("running", "recomputed"),
        later=True,
    )
    train_ratio: float = knob(0.75, help="share of each client's samples to train on", gt=0, lt=1)
    broadcast_to: str = knob(
        "next",
        help="who gets a broadcast: the clients of the next round, or all as in public libraries",
        choices=("next", "all"),
    )
    reference_loader: bool = knob(
        False,
        help="as in a public library: samples are never shuffled, and those of the last short "
        "batch are left out everywhere, also behind prototypes",
    )
    together: str = knob(
        "auto",
        help="local training by captured steps, all clients beside each other, equal up to "
        "rounding: auto: on a GPU only, step by step wherever it cannot be; always: warn where it "
        "cannot be",
        choices=("auto", "always", "never"),
        later=True,
    )
    precision: str = knob(
        "float32",
        help="of local training on a GPU: float32; tf32: matrix products and convolutions of "
        "10-bit fractions; bfloat16: forward passes, also on a CPU. Parameters stay float32",
        choices=("float32", "tf32", "bfloat16"),
        later=True,
    )
    eval_every: int = knob(1, help="evaluate after every so many rounds", ge=1)
    shared_test: int = knob(
        1000,
        help="images of the shared test set, drawn from all clients' test images, classes alike, "
        "on which every client's model is tested too; 0: none",
        ge=0,
        later=True,
    )
    shared_every: int = knob(
        0,
        help="test on the shared test set after every so many rounds, and after the last; 0: after "
        "the last alone",
        ge=0,
        later=True,
    )
    seed: int = knob(0, help="seed of everything random", ge=0)
    secret: str = knob(
        "",
        help="fingerprint of the secret (--secret) that follow from it: who has which image, "
        "clients' own draws, and all that the evaluator draws; empty: from the seed, which whoever "
        "has the images can guess",
        unit="16 hexadecimal digits",
        later=True,
    )

    @property
    def hidden(self) -> int:
        """Seed of what an attacker must not recompute: the secret's, or without one `seed`."""
        return hidden_number(self.secret, f"seed {self.seed}") if self.secret else self.seed

    def decay(self, round: int) -> float:
        """Factor on local step sizes in a round; 1 in the first and in what comes before it."""
        return float(self.lr_decay ** max(round - 1, 0))

    @property
    def plain_sgd(self) -> bool:
        """Whether a local step is the step size times the gradient of the loss of stored images."""
        return self.momentum == 0 and self.weight_decay == 0 and self.augment == "none"


@dataclass(frozen=True, eq=False)
class Samples:
    """Images and labels, pixels kept as uint8 where they are until a batch is used.

    Samples that are taken out of others share their pixels: nobody has a copy.

    Args:
        pool: uint8 (N, C, H, W), on the device of the labels or on the CPU.
        labels: (n,).
        rows: (n,) int64, on the device of the labels: the row of `pool` that holds each sample;
            None: its own number, and n is N.
    """

    pool: Tensor
    labels: Tensor
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def host_labels(self) -> Tensor:
        """The labels on the CPU, fetched once."""
        return self.labels.cpu()

    def take(self, index: Tensor) -> Self:
        """Keep some of them, in the order given: numbers (n,), or a mask of all."""
        if index.dtype == torch.bool:
            index = index.nonzero().squeeze(1)
        index = index.to(self.labels.device)
        rows = index if self.rows is None else self.rows[index]
        return replace(self, labels=self.labels[index], rows=rows)

    @property
    def images(self) -> Tensor:
        """All pixels (n, C, H, W): the pool itself, or a copy of some rows of it."""
        return self.pixels(slice(None))

    def pixels(self, index: Tensor | slice) -> Tensor:
        """Pixels (b, C, H, W) of some samples, on the device of the labels."""
        return self._read(self._in_pool(index))

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return images in [0, 1] (b, C, H, W) float32 and labels (b,)."""
        rows = self._in_pool(index)
        images = self._read(rows).float().div_(255)
        note_origin(images, ImageOrigin(self.pool, rows))
        return images, self.labels[index]

    def _in_pool(self, index: Tensor | slice) -> Tensor | slice:
        return index if self.rows is None else self.rows[index]

    def _read(self, rows: Tensor | slice) -> Tensor:
        if isinstance(rows, Tensor) and rows.dtype == torch.int64 and rows.dim() == 1:
            pixels = self.pool.index_select(0, rows.to(self.pool.device))  # copies whole rows
        else:
            pixels = self.pool[rows if isinstance(rows, slice) else rows.to(self.pool.device)]
        return pixels.to(self.labels.device)

    def fingerprint(self) -> int:
        """Hash of all pixels and labels, 63 bits."""
        numbers = torch.arange(len(self), device=self.labels.device)
        parts = (self.pixels(part) for part in numbers.split(HASHED))
        pixels = Pieces((len(self), *self.pool.shape[1:]), self.pool.dtype, parts)
        return secret(0, "samples", pixels, self.labels)


def client_secret(fingerprint: int, seed: int, client: int) -> int:
    """Seed of what protects a client's uploads: its seed and its own samples determine it."""
    return derive(fingerprint, f"client of run {seed}", client=client)


@dataclass
class Client:
    """One client: its model, its data, and whatever its protocol keeps across rounds.

    Args:
        shared: the test samples of all classes that all clients are tested on, else None.
        memory: modules kept across rounds. tensors: tensors kept across rounds.
        held: training samples that local training leaves out (FedAPEN), on the CPU, else None.
        absent: (n,) bool, training samples that are counted and in no batch, else None; see
            `runs.membership_game`.
    """

    id: int
    model: SplitModel
    train: Samples
    test: Samples
    shared: Samples | None = None
    memory: dict[str, torch.nn.Module] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    held: Tensor | None = None
    absent: Tensor | None = None

    @cached_property
    def fingerprint(self) -> int:
        """Hash of the client's own training samples, which nobody else has."""
        return self.train.fingerprint()

    @property
    def fitted(self) -> Samples:
        """The training samples that local training uses."""
        return self.train if self.held is None else self.train.take(self.fitted_index)

    @property
    def fitted_index(self) -> Tensor:
        """The number of each of `fitted` among the training samples, on the CPU."""
        if self.held is None:
            return torch.arange(len(self.train))
        keep = torch.ones(len(self.train), dtype=torch.bool)
        keep[self.held] = False
        return keep.nonzero().squeeze(1)

    def upload_samples(self, training: Training) -> Samples:
        """The training samples behind prototypes, representations and other statistics.

        All of them, or whole batches only with ``train.reference_loader``.
        """
        count, size = len(self.train), training.batch_size
        if not training.reference_loader or count < size:
            return self.train
        return self.train.take(torch.arange(count - count % size, device=self.train.labels.device))


@dataclass
class Server:
    """What the server keeps: modules and tensors by name, saved in checkpoints."""

    modules: dict[str, torch.nn.Module] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


SERVER_STATE = "server state"
"""Name of the random stream that the server's first state is drawn from."""


@dataclass(frozen=True)
class Setting:
    """The facts a protocol may check before training starts."""

    training: Training
    num_classes: int
    image_shape: tuple[int, int, int]
    dims: tuple[int, ...]
    architectures: tuple[str, ...]
    class_counts: tuple[tuple[int, ...], ...]
    device: torch.device
    model: ModelSettings = ModelSettings()


@dataclass(frozen=True)
class Task:
    """One step's place in the run: who, when, and its random streams."""

    setting: Setting
    round: int
    client: int = -1

    def rng(self, purpose: str) -> torch.Generator:
        """Fresh stream of this (seed, client, round)."""
        seed = self.setting.training.seed
        return stream(seed, purpose, client=self.client, round=self.round)

    def secret(self, client: Client) -> int:
        """Seed of what protects a client's uploads, which its seed and data alone determine."""
        return client_secret(client.fingerprint, self.setting.training.hidden, client.id)

    def secret_rng(self, client: Client, purpose: str) -> torch.Generator:
        """Fresh stream of this client and round that nobody without its data can repeat."""
        return stream(self.secret(client), purpose, client=client.id, round=self.round)


Message = tuple[Artifact, ...]
"""What one side hands the other: artifacts and nothing else."""


def only_artifact(message: Message, kind: type[A]) -> A:
    """Return the one artifact of a kind in a message.

    Raises:
        LookupError: the message does not hold exactly one.
    """
    found = [artifact for artifact in message if isinstance(artifact, kind)]
    if len(found) != 1:
        raise LookupError(f"expected one {kind.__name__} in {message}")
    return found[0]
