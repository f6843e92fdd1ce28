"""Published communication tables, as printed: numbers only, from the CSV files beside this module.

FedRE:  Yao et al., FedRE, CVPR 2026, Tables 2, 4 and 11 (thousands of scalars, totals over ten
        clients and one round, practical label skew unless stated).
FedRAL: Yi et al., Federated representation angle learning, Table 4 (KB of 1024 bytes, one client,
        one round, upload only).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
FOLDER = Path(__file__).with_name("tables")
CLIENTS = 10
"""Clients of the FedRE tables, all of them in every round."""
FEDRAL_DIM = 500
"""Representation length of FedRAL's CIFAR models."""
CIFAR10_PRA_SHA256 = "069b4f4f85becb57"
"""First 16 hex digits of the SHA-256 of the published CIFAR-10 training indices (PRA, seed 0)."""


@dataclass(frozen=True)
class PublishedData:
    """A data set as the FedRE tables count it.

    Args:
        key: as ``--dataset`` takes it. name: as printed. num_classes: C. side: of images (pixels).
        per_class: images of each class, training and test parts merged.
        mislabelled: images that carry label 0 instead of their own.
        dim: representation length d that the printed numbers imply.
        homogeneous: architecture of the model-homogeneous cells.
        classes_per_client: of the pathological partition (PAT).
    """

    key: str
    name: str
    num_classes: int
    side: int
    per_class: int
    mislabelled: int
    dim: int
    homogeneous: str
    classes_per_client: int


@dataclass(frozen=True)
class FedREPair:
    """Thousands of scalars of a method up and down; `setting` is that of the clients' models."""

    method: str
    up: float
    down: float
    protocol: str = ""
    data_set: str = ""
    setting: str = ""


@dataclass(frozen=True)
class FedRETotal:
    """Thousands of scalars of a method on TinyImageNet under a partition."""

    method: str
    partition: str
    thousands: float


@dataclass(frozen=True)
class FedRALCost:
    """One row of FedRAL's Table 4.

    Args:
        kilobytes: of one client's upload in one round (1024 bytes).
        rounds: to the target accuracy. megabytes: uploaded until then.
        classes: of each client, from the paper's partitions.
    """

    partition: str
    data_set: str
    method: str
    kilobytes: float
    rounds: int
    megabytes: float
    classes: int


def _rows(name: str, kind: type[T]) -> list[T]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as handle:
        return msgspec.convert(list(csv.DictReader(handle)), list[kind], strict=False)  # type: ignore[valid-type]


DATA_SETS = {data.key: data for data in _rows("data_sets", PublishedData)}
"""By the names that ``--dataset`` takes. TinyImageNet: the released generator labels all 10,000
validation images 0; d = 2048 and ResNet-50 contradict the paper's text (512, ResNet-18)."""
TABLE_11 = _rows("fedre_table_11", FedREPair)
TABLE_2 = _rows("fedre_table_2", FedREPair)
"""FedRE, Table 2: CIFAR-100."""
TABLE_4 = _rows("fedre_table_4", FedRETotal)
FEDRAL_TABLE_4 = _rows("fedral_table_4", FedRALCost)
