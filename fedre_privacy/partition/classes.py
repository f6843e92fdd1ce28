"""A few random classes per client, each class in nearly equal parts."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from ..core.config import knob
from ..core.errors import IncompatibleError
from .base import IntArray, Partition, nearest_numbers, partitions


@partitions.register("classes")
@dataclass(frozen=True, kw_only=True)
class Classes(Partition):
    """Give each client slots for a fixed number of random classes.

    With K clients and C classes each class has classes * K / C slots, a whole number, whose parts
    of the class are drawn from U(0.4, 0.6) and normalised. Clients in turn fill their slots with
    classes drawn from those with the most free slots, so every class is used; a client may draw
    a class twice and then has fewer of them.

    Raises:
        IncompatibleError: the slots do not divide by the classes, a client wants more classes
            than there are, or a class is too small for its slots.
    Reference: "Non-IID (Class)" of FedMRL (NeurIPS 2024) and "Pathological" of FedRAL, from the
        loaders of pFedHN (A. Shamsian et al., ICML 2021).
    Deviations: original training and test set are merged and each client's share is split once,
        by train.train_ratio (0.8 in the papers). The released code shares training, validation
        and test set (40,000, 10,000 and 10,000 images of CIFAR) out alike and leaves the
        validation part unused: ``validation=0.2`` with train.train_ratio=5/6, which split every
        class of a client apart. Nothing is lost by rounding.
        Random numbers come from another generator, so the clients' classes differ.
    """

    when_to_use = "a fixed number of classes a client, in shares that nearly agree"
    shorthand = "classes"

    classes: int = knob(2, help="class slots of each client", unit="classes", ge=1)
    validation: float = knob(
        0.0,
        help="share of the training samples that is left out, as a validation part that nobody "
        "uses; above 0 each class of a client is split apart, as in FedMRL's code",
        ge=0,
        lt=1,
        later=True,
    )

    def assign(
        self, labels: IntArray, num_clients: int, random: np.random.RandomState
    ) -> list[IntArray]:
        present = np.unique(labels)
        slots = self._slots(len(present), num_clients)
        parts = random.uniform(0.4, 0.6, (len(present), slots))
        cuts = np.cumsum(parts / parts.sum(1, keepdims=True), axis=1)[:, :-1]
        pieces = []
        for label, at in zip(present, cuts, strict=True):
            own = np.flatnonzero(labels == label)
            random.shuffle(own)
            pieces.append(np.split(own, (at * len(own)).astype(np.int64)))
            if min(map(len, pieces[-1])) == 0:
                raise IncompatibleError(
                    f"Partition 'classes': class {label} has {len(own)} samples, too few for its "
                    f"{slots} slots.",
                    next_step="Use fewer classes per client, fewer clients, or more images.",
                )
        shares: list[list[IntArray]] = [[] for _ in range(num_clients)]
        free = np.full(len(present), slots)
        for share in shares:
            for _ in range(self.classes):
                drawn = random.choice(np.flatnonzero(free == free.max()))
                free[drawn] -= 1
                share.append(pieces[drawn][free[drawn]])
        return [np.concatenate(own) for own in shares]

    def split_client(
        self, own: IntArray, labels: IntArray, train_ratio: float, random: np.random.RandomState
    ) -> tuple[IntArray, IntArray]:
        if not self.validation:
            return super().split_client(own, labels, train_ratio, random)
        train, test = [], []
        for label in np.unique(labels[own]):
            some = random.permutation(own[labels[own] == label])
            fitted = int(train_ratio * len(some))
            unused = int(self.validation * fitted)
            train.append(some[unused:fitted])
            test.append(some[fitted:])
        return np.concatenate(train), np.concatenate(test)

    def _slots(self, num_classes: int, num_clients: int) -> int:
        """Return the slots of each class, or say which settings would work."""
        total = self.classes * num_clients
        if self.classes > num_classes:
            problem = f"the data have {num_classes} classes"
        elif total < num_classes:
            problem = f"nobody would get {num_classes - total} of the {num_classes} classes"
        elif total % num_classes:
            problem = f"{total} slots cannot be shared equally by {num_classes} classes"
        else:
            return total // num_classes
        works = nearest_numbers(
            lambda number: number * num_clients % num_classes == 0, num_classes, self.classes
        )
        options = [f"classes:{number}" for number in works]
        if self.classes <= num_classes:
            options.append(
                f"{num_classes // gcd(num_classes, self.classes)} clients, or a multiple of that"
            )
        raise IncompatibleError(
            f"Partition 'classes' with {self.classes} for each of {num_clients} clients: "
            f"{problem}.",
            next_step=f"Use {' or '.join(options)}.",
        )
