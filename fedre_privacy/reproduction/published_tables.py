"""Published communication tables, as printed: numbers only, with their sources.

FedRE:  Yao et al., FedRE, CVPR 2026, Tables 2, 4 and 11 (thousands of scalars, totals over ten
        clients and one round, practical label skew unless stated).
FedRAL: Yi et al., Federated representation angle learning, Table 4 (KB of 1024 bytes, one client,
        one round, upload only).
"""

from __future__ import annotations

from dataclasses import dataclass

CLIENTS = 10
"""Clients of the FedRE tables, all of them in every round."""


@dataclass(frozen=True)
class PublishedData:
    """A data set as the FedRE tables count it.

    Args:
        name: as printed. num_classes: C. side: of the images (pixels).
        per_class: images of each class, training and test parts merged.
        mislabelled: images that carry label 0 instead of their own.
        dim: representation length d that the printed numbers imply.
        homogeneous: architecture of the model-homogeneous cells.
        classes_per_client: of the pathological partition (PAT).
    """

    name: str
    num_classes: int
    side: int
    per_class: int
    mislabelled: int
    dim: int
    homogeneous: str
    classes_per_client: int


DATA_SETS = {
    "cifar10": PublishedData("CIFAR-10", 10, 32, 6000, 0, 512, "cnn4", 2),
    "cifar100": PublishedData("CIFAR-100", 100, 32, 600, 0, 512, "cnn4", 10),
    "tinyimagenet": PublishedData("TinyImageNet", 200, 64, 500, 10_000, 2048, "resnet50", 20),
}
"""By the names that ``--dataset`` takes. TinyImageNet: the released generator labels all 10,000
validation images 0; d = 2048 and ResNet-50 contradict the paper's text (512, ResNet-18)."""

CIFAR10_PRA_SHA256 = "069b4f4f85becb57"
"""First 16 hex digits of the SHA-256 of the published CIFAR-10 training indices (PRA, seed 0)."""

METHODS = {
    "FedAvg": "fedavg",
    "FedALA": "fedala",
    "FedAvgDBE": "fedavgdbe",
    "LG-FedAvg": "lg-fedavg",
    "FedGH": "fedgh",
    "FedKD": "fedkd",
    "FedGen": "fedgen",
    "FedProto": "fedproto",
    "FPL": "fpl",
    "FedMRL": "fedmrl",
    "FedTGP": "fedtgp",
    "FedRE": "fedre",
}
"""Methods of Table 11 and our protocols."""

Pair = tuple[float, float]

TABLE_11: dict[str, dict[str, tuple[Pair, Pair | None]]] = {
    "FedAvg": {
        "cifar10": ((8785.38, 8785.38), None),
        "cifar100": ((9247.08, 9247.08), None),
        "tinyimagenet": ((239178.32, 239178.32), None),
    },
    "FedALA": {
        "cifar10": ((8785.38, 8785.38), None),
        "cifar100": ((9247.08, 9247.08), None),
        "tinyimagenet": ((239178.32, 239178.32), None),
    },
    "FedAvgDBE": {
        "cifar10": ((8785.38, 8785.38), None),
        "cifar100": ((9247.08, 9247.08), None),
        "tinyimagenet": ((239178.32, 239178.32), None),
    },
    "LG-FedAvg": {
        "cifar10": ((51.30, 51.30), (51.30, 51.30)),
        "cifar100": ((513.00, 513.00), (513.00, 513.00)),
        "tinyimagenet": ((4098.00, 4098.00), (4098.00, 4098.00)),
    },
    "FedGH": {
        "cifar10": ((31.23, 51.20), (31.23, 51.20)),
        "cifar100": ((257.02, 512.00), (257.02, 512.00)),
        "tinyimagenet": ((1918.98, 4096.00), (1918.98, 4096.00)),
    },
    "FedKD": {
        "cifar10": ((3374.28, 3374.28), (3353.68, 3353.68)),
        "cifar100": ((4234.28, 4234.28), (3524.67, 3524.67)),
        "tinyimagenet": ((90503.00, 90503.00), (57544.97, 57544.97)),
    },
    "FedGen": {
        "cifar10": ((8785.38, 8785.38), (51.30, 51.30)),
        "cifar100": ((9247.08, 9247.08), (513.00, 513.00)),
        "tinyimagenet": ((239178.32, 239178.32), (4098.00, 4098.00)),
    },
    "FedProto": {
        "cifar10": ((31.23, 51.20), (31.23, 51.20)),
        "cifar100": ((257.02, 512.00), (257.02, 512.00)),
        "tinyimagenet": ((1918.98, 4096.00), (1918.98, 4096.00)),
    },
    "FPL": {
        "cifar10": ((31.23, 87.04), (31.23, 112.64)),
        "cifar100": ((257.02, 916.48), (257.02, 1182.72)),
        "tinyimagenet": ((1918.98, 9768.96), (1918.98, 10567.68)),
    },
    "FedMRL": {
        "cifar10": ((8746.98, 8746.98), (8746.98, 8746.98)),
        "cifar100": ((8863.08, 8863.08), (8863.08, 8863.08)),
        "tinyimagenet": ((56178.00, 56178.00), (56178.00, 56178.00)),
    },
    "FedTGP": {
        "cifar10": ((31.23, 51.20), (31.23, 51.20)),
        "cifar100": ((257.02, 512.00), (257.02, 512.00)),
        "tinyimagenet": ((1918.98, 4096.00), (1918.98, 4096.00)),
    },
    "FedRE": {
        "cifar10": ((5.12, 51.30), (5.12, 51.30)),
        "cifar100": ((5.12, 513.00), (5.12, 513.00)),
        "tinyimagenet": ((20.48, 4098.00), (20.48, 4098.00)),
    },
}
"""FedRE, Table 11: method, data set, then (upload, broadcast) homogeneous and heterogeneous."""

TABLE_2: dict[str, Pair] = {
    "LG-FedAvg": (513.00, 513.00),
    "FedGH": (257.02, 512.00),
    "FedKD": (4234.28, 4234.28),
    "FedGen": (9247.08, 513.00),
    "FedProto": (257.02, 512.00),
    "FPL": (257.02, 916.48),
    "FedMRL": (8863.08, 8863.08),
    "FedTGP": (257.02, 512.00),
    "FedRE": (5.12, 513.00),
}
"""FedRE, Table 2: (upload, broadcast) on CIFAR-100."""

TABLE_4: dict[tuple[str, str], float] = {
    ("FedAllRep", "PRA"): 42160.39,
    ("FedAllRep", "PAT"): 42258.88,
    ("FedRE", "PRA"): 4118.48,
    ("FedRE", "PAT"): 4118.48,
}
"""FedRE, Table 4: method and partition of TinyImageNet."""


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


FEDRAL_DIM = 500
"""Representation length of FedRAL's CIFAR models."""

FEDRAL_TABLE_4 = (
    FedRALCost("pathological", "CIFAR-10", "FedTGP", 3.91, 302, 1.15, 2),
    FedRALCost("pathological", "CIFAR-10", "FedRAL", 1.56, 201, 0.31, 2),
    FedRALCost("pathological", "CIFAR-100", "FedTGP", 19.53, 354, 6.75, 10),
    FedRALCost("pathological", "CIFAR-100", "FedRAL", 9.77, 144, 1.37, 10),
    FedRALCost("practical", "CIFAR-10", "FedTGP", 19.53, 348, 6.64, 10),
    FedRALCost("practical", "CIFAR-10", "FedRAL", 7.81, 103, 0.79, 10),
    FedRALCost("practical", "CIFAR-100", "FedTGP", 195.31, 363, 69.24, 100),
    FedRALCost("practical", "CIFAR-100", "FedRAL", 39.06, 146, 5.57, 100),
)
"""FedRAL, Table 4 (costs)."""
