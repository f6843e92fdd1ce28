"""Every client sees the same mix of classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .base import IntArray, Partition, partitions


@partitions.register("iid")
@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """Shuffle all samples and deal them out in shares of equal size (to within one)."""

    when_to_use = "the control: clients whose labels are not skewed"
    also = ("homogeneous", "homo", "uniform", "random", "even", "equal")

    def assign(
        self, labels: IntArray, num_clients: int, random: np.random.RandomState
    ) -> list[IntArray]:
        return np.array_split(random.permutation(len(labels)).astype(np.int64), num_clients)
