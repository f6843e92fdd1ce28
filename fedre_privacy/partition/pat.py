"""Pathological label skew: a few classes per client."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from ..core.config import knob
from ..core.errors import IncompatibleError
from .base import IntArray, Partition, nearest_numbers, partitions
from .pra import published_minimum


@partitions.register("pat")
@dataclass(frozen=True, kw_only=True)
class PAT(Partition):
    """Give each client a fixed number of classes; clients of a class share it in random parts.

    Classes are handed out in order to the clients with free slots, lowest id first. Where a
    class has one client only (10 clients and 10 of 100 classes each, say) nothing is random. The
    last clients may end up with fewer classes when the numbers do not divide.

    Raises:
        IncompatibleError: the published rule would leave out a class, or a class is too small to
            share.
    Reference: PFLlib (JMLR 2025), "PAT" in the FedRE paper with 2, 10 and 20 classes for CIFAR-10,
        CIFAR-100 and TinyImageNet.
    Deviations: the released code divides by zero or drops classes where this raises an error.
    """

    when_to_use = "pathological skew as in many papers: few classes a client"
    shorthand = "classes"
    also = ("pathological", "shards", "label-skew")

    classes: int = knob(2, help="classes of each client", unit="classes", ge=1)

    def assign(
        self, labels: IntArray, num_clients: int, random: np.random.RandomState
    ) -> list[IntArray]:
        present = np.unique(labels)
        holders = self._plan(present, num_clients)
        members = [np.flatnonzero(labels == label) for label in present]
        floor = published_minimum(len(labels), num_clients) / len(present)
        bounds = [
            _bounds(len(own) / len(clients), floor)
            for own, clients in zip(members, holders, strict=True)
        ]
        for label, clients, (low, high) in zip(present, holders, bounds, strict=True):
            if len(clients) > 1 and low >= high:
                raise IncompatibleError(
                    f"Partition 'pat': class {label} has too few samples to share in random "
                    f"parts among clients {', '.join(map(str, clients))}.",
                    next_step="Use fewer classes per client, fewer clients, or more images.",
                )
        pieces: list[list[IntArray]] = [[] for _ in range(num_clients)]
        for own, clients, (low, high) in zip(members, holders, bounds, strict=True):
            cuts = np.empty(0, dtype=np.int64)
            if len(clients) > 1:
                cuts = random.randint(low, high, len(clients) - 1, dtype=np.int64).cumsum()
            for client, piece in zip(clients, np.split(own, cuts), strict=True):
                pieces[client].append(piece)
        return [np.concatenate(own) for own in pieces]

    def _plan(self, present: IntArray, num_clients: int) -> list[list[int]]:
        """Return the clients of each class, or say which settings would work."""
        num_classes = len(present)
        holders = _holders(num_classes, num_clients, self.classes)
        orphans = [str(label) for label, own in zip(present, holders, strict=True) if not own]
        if self.classes > num_classes:
            problem = f"the data have {num_classes} classes"
        elif orphans:
            problem = f"nobody would get class {', '.join(orphans)}"
        else:
            return holders
        works = nearest_numbers(
            lambda number: all(_holders(num_classes, num_clients, number)),
            num_classes,
            self.classes,
        )
        options = [f"pat:{number}" for number in works] + ["another number of clients"]
        raise IncompatibleError(
            f"Partition 'pat' with {self.classes} classes for each of {num_clients} clients: "
            f"{problem}.",
            next_step=f"Use {' or '.join(options)}.",
        )


def _holders(num_classes: int, num_clients: int, slots: int) -> list[list[int]]:
    """Hand out classes in order; an empty list is a class for which no client has a slot left.

    No client is left without a class: num_classes * wanted >= num_clients * slots.
    """
    free = [slots] * num_clients
    wanted = ceil(num_clients / num_classes * slots)
    out = []
    for _ in range(num_classes):
        clients = [client for client in range(num_clients) if free[client]][:wanted]
        for client in clients:
            free[client] -= 1
        out.append(clients)
    return out


def _bounds(even: float, floor: float) -> tuple[int, int]:
    """Range of a random part: lower bound included, upper excluded."""
    return int(max(even / 10, floor)), int(even)
