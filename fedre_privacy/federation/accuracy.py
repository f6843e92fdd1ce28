"""Accuracy of all clients: when it is measured, on which samples, and as a row of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.defenses.base import Defense
from fedre_privacy.defenses.learnt import learns, predict_with_defenses
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.local import count_correct
from fedre_privacy.protocols.blocks.state import Client, Samples, Setting, Training

from .steps import on_device

MOMENTS = ("post_local", "post_broadcast")
SHARED = "shared_"
"""Before a moment's name: accuracy on the shared test set."""

PER_CLIENT = "per_client_"
"""Before a moment's name: the key of all clients' accuracies, which are no column of metrics."""


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


def count(
    protocol: Protocol,
    client: Client,
    setting: Setting,
    samples: Samples,
    defenses: Sequence[Defense] = (),
) -> tuple[int, int]:
    """How many of some samples a client gets right, and how many there are.

    Args:
        defenses: of the client; learnt ones change what it predicts from.
    """
    for module in (client.model, *client.memory.values()):
        module.eval()
    with (
        on_device(client, setting),
        predict_with_defenses(client.model.extractor, defenses, client.memory),
    ):
        correct = count_correct(partial(protocol.logits, client), samples)
    return correct, len(samples)


class AccuracyCache:
    """Clients' accuracy when it was measured last, and checksums of what it was measured with.

    A broadcast often leaves a client's prediction as it was, and so does a round in which it takes
    no part. Its test samples need no second pass then.
    """

    def __init__(self, protocol: Protocol, defenses: Sequence[Defense] = ()) -> None:
        plain = type(protocol).logits is Protocol.logits
        self._only_model = plain and not any(map(learns, defenses))
        self._sums: dict[int, list[int]] = {}
        self._counts: dict[int, tuple[int, int]] = {}

    def clients_to_measure(self, clients: Sequence[Client], device: torch.device) -> list[int]:
        """Clients whose prediction may be another than when it was measured last.

        On a GPU all of them: there a checksum takes as long as the pass that it saves.
        """
        if device.type != "cpu":
            return list(range(len(clients)))
        before, self._sums = self._sums, {k: self._sum(client) for k, client in enumerate(clients)}
        return [k for k in self._sums if self._sums[k] != before.get(k) or k not in self._counts]

    def update(self, found: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
        """Keep what was measured; return the newest numbers of all clients, in order."""
        self._counts |= found
        return [self._counts[k] for k in sorted(self._counts)]

    def _sum(self, client: Client) -> list[int]:
        """Checksums of all tensors that the client's prediction may be made of."""
        modules = [client.model] if self._only_model else [client.model, *client.memory.values()]
        tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        tensors += [] if self._only_model else [t for _, t in sorted(client.tensors.items())]
        return [number for tensor in tensors for number in checksum(tensor)]


def checksum(tensor: Tensor) -> tuple[int, int]:
    """Sums of a tensor's bits, read as integers: of all, and of every second one."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    values = tensor.detach().contiguous().view(-1)
    bits = values.view(whole.get(values.element_size(), torch.uint8))
    return int(bits.sum(dtype=torch.int64)), int(bits[::2].sum(dtype=torch.int64))


def evaluate(protocol: Protocol, clients: Sequence[Client], setting: Setting) -> ClientAccuracy:
    """Accuracy of every client on its own test samples."""
    return accuracy([count(protocol, client, setting, client.test) for client in clients])


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
