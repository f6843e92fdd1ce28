"""Accuracy of all clients: when it is measured, on which samples, and as a row of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.defenses.base import Defense
from fedre_privacy.defenses.learnt import learns, predict_with_defenses
from fedre_privacy.models.split import SplitModel
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.local import EVAL_BATCH, count_correct, represent
from fedre_privacy.protocols.blocks.state import Client, Samples, Setting, Training

from .steps import on_device

MOMENTS = ("post_local", "post_broadcast")
SHARED = "shared_"
"""Before a moment's name: accuracy on the shared test set."""

PER_CLIENT = "per_client_"
"""Before a moment's name: the key of all clients' accuracies, which are no column of metrics."""

KEPT_BYTES = 2**28
"""Representations of test samples that are kept of all clients together, at most."""


@dataclass(frozen=True)
class ClientAccuracy:
    """Test accuracy over clients: macro (mean of clients) and micro (pooled samples)."""

    mean_client: float
    sd_client: float
    pooled: float
    per_client: tuple[float | None, ...]


def is_measured(training: Training, round: int) -> bool:
    """Whether accuracy is measured in a round."""
    return round % training.eval_every == 0 or round == training.rounds


def measured_on_shared(training: Training, round: int) -> bool:
    """Whether accuracy on the shared test set is measured in a round."""
    every = training.shared_every
    due = round == training.rounds or bool(every and round % every == 0)
    return due and training.shared_test > 0


@dataclass(frozen=True)
class Count:
    """How many of a client's samples are predicted right, and how many there are.

    Attributes:
        representations: (total, d), which another head may be applied to; None if not kept.
    """

    correct: int
    total: int
    representations: Tensor | None = None


def count(
    protocol: Protocol,
    client: Client,
    setting: Setting,
    samples: Samples,
    defenses: Sequence[Defense] = (),
    *,
    keep: bool = False,
) -> Count:
    """Count how many of some samples a client gets right.

    Args:
        defenses: of the client; learnt ones change what it predicts from.
        keep: return the samples' representations too; the client predicts by its model alone.
    """
    for module in (client.model, *client.memory.values()):
        module.eval()
    with (
        on_device(client, setting),
        predict_with_defenses(client.model.extractor, defenses, client.memory),
    ):
        if keep and len(samples):
            found = represent(client.model.extractor, samples)
            return count_by_head(client.model.head, found, samples.labels)
        correct = count_correct(partial(protocol.logits, client), samples)
    return Count(correct, len(samples))


@torch.no_grad()
def count_by_head(head: nn.Module, representations: Tensor, labels: Tensor) -> Count:
    """Count what a head gets right, in batches of the whole model's pass, so that bits are equal.

    Args:
        representations: (n, d). labels: (n,) int64.
    """
    predicted = torch.cat([head(part).argmax(1) for part in representations.split(EVAL_BATCH)])
    return Count(int((predicted == labels).sum()), len(labels), representations)


Sums = list[int]


class AccuracyCache:
    """Clients' accuracy when it was measured last, and checksums of what it was measured with.

    A broadcast often leaves a client's prediction as it was, and so does a round in which it takes
    no part. Its test samples need no second pass then. Where only the head is another, it is
    applied to the representations of the last pass.

    Args:
        tests: test samples of every client.
    """

    def __init__(
        self,
        protocol: Protocol,
        clients: Sequence[Client],
        tests: Sequence[Samples],
        device: torch.device,
        defenses: Sequence[Defense] = (),
    ) -> None:
        self.clients, self.tests, self.device = clients, tests, device
        plain = type(protocol).logits is Protocol.logits
        self._only_model = plain and not any(map(learns, defenses))
        self.keeps = self._only_model and device.type == "cpu" and self._can_keep()
        self._sums: dict[int, tuple[Sums, Sums]] = {}
        self._counts: dict[int, tuple[int, int]] = {}
        self._representations: dict[int, Tensor] = {}

    def clients_to_measure(self) -> list[int]:
        """Clients whose prediction may be another than when it was measured last.

        On a GPU all of them: there a checksum takes as long as the pass that it saves.
        """
        if self.device.type != "cpu":
            return list(range(len(self.clients)))
        before = self._sums
        self._sums = {k: self._sums_of(client) for k, client in enumerate(self.clients)}
        for k in [k for k in self._representations if self._sums[k][0] != before[k][0]]:
            del self._representations[k]
        return [k for k in self._sums if self._sums[k] != before.get(k) or k not in self._counts]

    def count_by_heads(self, chosen: Sequence[int]) -> dict[int, Count]:
        """Count for those of some clients whose extractor is as it was at the last pass."""
        return {
            k: count_by_head(self.clients[k].model.head, known, self.tests[k].labels)
            for k, known in self._representations.items()
            if k in chosen
        }

    def update(self, found: Mapping[int, Count]) -> list[tuple[int, int]]:
        """Keep what was measured; return the newest numbers of all clients, in order."""
        for k, one in found.items():
            self._counts[k] = (one.correct, one.total)
            if one.representations is not None:
                self._representations[k] = one.representations
        return [self._counts[k] for k in sorted(self._counts)]

    def _can_keep(self) -> bool:
        """Whether every model is a head on an extractor, and representations are not too large."""
        split = all(type(c.model).forward is SplitModel.forward for c in self.clients)
        values = sum(
            len(samples) * client.model.dim
            for client, samples in zip(self.clients, self.tests, strict=True)
        )
        return split and 4 * values <= KEPT_BYTES

    def _sums_of(self, client: Client) -> tuple[Sums, Sums]:
        """Checksums of all tensors that a client's prediction is made of: others, the head's."""
        modules = [client.model] if self._only_model else [client.model, *client.memory.values()]
        tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        tensors += [] if self._only_model else [t for _, t in sorted(client.tensors.items())]
        head = list(client.model.head.parameters())
        own = set(map(id, head))
        rest = [tensor for tensor in tensors if id(tensor) not in own]
        before, last = ([n for tensor in part for n in checksum(tensor)] for part in (rest, head))
        return before, last


def checksum(tensor: Tensor) -> tuple[int, int]:
    """Sums of a tensor's bits, read as integers: of all, and of every second one."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    values = tensor.detach().contiguous().view(-1)
    bits = values.view(whole.get(values.element_size(), torch.uint8))
    return int(bits.sum(dtype=torch.int64)), int(bits[::2].sum(dtype=torch.int64))


def evaluate(protocol: Protocol, clients: Sequence[Client], setting: Setting) -> ClientAccuracy:
    """Accuracy of every client on its own test samples."""
    found = [count(protocol, client, setting, client.test) for client in clients]
    return accuracy([(one.correct, one.total) for one in found])


def accuracy(counts: Sequence[tuple[int, int]]) -> ClientAccuracy:
    """Accuracy of clients, of whose test samples so many are right out of so many."""
    correct, totals = zip(*counts, strict=True)
    per_client = tuple(c / n if n else None for c, n in counts)
    tested = [value for value in per_client if value is not None]
    mean = sum(tested) / len(tested) if tested else float("nan")
    return ClientAccuracy(
        mean,
        (sum((value - mean) ** 2 for value in tested) / max(len(tested) - 1, 1)) ** 0.5,
        sum(correct) / max(sum(totals), 1),
        per_client,
    )


def columns(
    moment: str, own: ClientAccuracy | None, shared: ClientAccuracy | None
) -> dict[str, Any]:
    """What a row of metrics holds of one moment; None where nothing was measured.

    Args:
        own: on clients' own test samples. shared: on the shared test set.
    """
    row: dict[str, Any] = {}
    for name, found in ((moment, own), (f"{SHARED}{moment}", shared)):
        row[f"acc_{name}"] = found.mean_client if found else None
        row[f"acc_{name}_sd"] = found.sd_client if found else None
        row[f"{PER_CLIENT}{name}"] = list(found.per_client) if found else None
    return row | {f"acc_{moment}_pooled": own.pooled if own else None}
