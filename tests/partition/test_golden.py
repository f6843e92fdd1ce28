"""Published partitions, index for index and count for count."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.partition import ClientSplit, Partition, split_clients
from fedre_privacy.partition.iid import IID
from fedre_privacy.partition.pat import PAT
from fedre_privacy.partition.pra import PRA

Labels = npt.NDArray[np.int64]

CIFAR10_PRA = [2205, 3830, 6207, 6948, 3861, 4808, 5831, 4427, 4591, 2289]
CIFAR10_PAT = [3645, 5355, 1648, 7351, 2523, 6477, 1991, 7008, 3806, 5193]

# Sizes and class counts depend on how many samples each class has, not on their order, so
# ordered labels stand in for the real ones. Only index hashes need the real order.
CIFAR10 = np.repeat(np.arange(10), 6000)
CIFAR100 = np.repeat(np.arange(100), 600)
TINY_TRAIN = np.repeat(np.arange(200), 500)
TINY = np.concatenate([TINY_TRAIN, np.repeat(np.arange(200), 50)])
TINY_VAL_AS_CLASS0 = np.concatenate([TINY_TRAIN, np.zeros(10_000, dtype=np.int64)])


def facts(
    scheme: Partition, labels: Labels, clients: int = 10
) -> tuple[ClientSplit, list[int], int]:
    """Return the split for seed 0, its training sizes and its (client, class) pairs."""
    found = split_clients(scheme, labels, clients, 0)
    counts = found.class_counts(labels, int(labels.max()) + 1)
    sizes = [len(own) for own in found.train]
    assert counts.sum(1).tolist() == sizes
    return found, sizes, int((counts > 0).sum())


@pytest.fixture(scope="module")
def cifar10() -> Labels:
    folder = os.environ.get("FEDRE_TEST_DATA")
    if folder is None:
        pytest.skip("FEDRE_TEST_DATA is not set")
    labels: Labels = np.load(Path(folder) / "cifar10-labels.npy", allow_pickle=False)
    return labels


def test_cifar10_pra_index_for_index(cifar10: Labels) -> None:
    found, sizes, pairs = facts(PRA(), cifar10)
    assert found.sha256_train == "069b4f4f85becb57"
    assert found.sha256_test == "6e55e14aa30403cb"
    assert sizes == CIFAR10_PRA and pairs == 61
    present = (found.class_counts(cifar10, 10) > 0).sum(1)
    assert present.tolist() == [5, 7, 6, 4, 7, 6, 4, 8, 4, 10]


def test_cifar10_pat_index_for_index(cifar10: Labels) -> None:
    found, sizes, pairs = facts(PAT(), cifar10)
    assert found.sha256_train == "d81d662dc9a4d4ab"
    assert found.sha256_test == "59c5bbde5623d30f"
    assert sizes == CIFAR10_PAT and pairs == 20
    assert (found.class_counts(cifar10, 10) > 0).sum(1).tolist() == [2] * 10


def test_digits_index_for_index() -> None:
    from sklearn.datasets import load_digits

    labels = load_digits().target.astype(np.int64)
    for scheme, train, test, sizes in (
        (PRA(), "4cad49a9c8d63f7e", "258700d43db05dab",
         [135, 117, 168, 147, 155, 182, 45, 79, 176, 140]),
        (PAT(), "5695696f15d17ca3", "0bb0f05808744b59",
         [81, 189, 111, 159, 70, 201, 55, 214, 74, 191]),
        (IID(), "603c77bff15aea7e", "bb1faee6cea2b006", [135] * 7 + [134] * 3),
    ):  # fmt: skip
        found, found_sizes, _ = facts(scheme, labels)
        assert (found.sha256_train, found.sha256_test) == (train, test), scheme.name
        assert found_sizes == sizes


@pytest.mark.parametrize(
    ("labels", "alpha", "pairs"),
    [
        (CIFAR10, 0.05, 39),
        (CIFAR10, 0.1, 61),
        (CIFAR10, 1, 94),
        (CIFAR10, 10, 97),
        (CIFAR100, 0.05, 336),
        (CIFAR100, 0.1, 502),
        (CIFAR100, 1, 970),
        (CIFAR100, 10, 986),
        (TINY_VAL_AS_CLASS0, 0.1, 937),
        (TINY, 0.1, 1005),
        (TINY_TRAIN, 0.1, 987),
    ],
)
def test_pra_pairs(labels: Labels, alpha: float, pairs: int) -> None:
    assert facts(PRA(alpha=alpha), labels)[2] == pairs


@pytest.mark.parametrize(
    ("scheme", "labels", "sizes", "pairs"),
    [
        (PRA(), CIFAR10, CIFAR10_PRA, 61),
        (PAT(), CIFAR10, CIFAR10_PAT, 20),
        (PRA(), CIFAR100, [4652, 4530, 4117, 3879, 4351, 4764, 4515, 4526, 4866, 4796], 502),
        (PAT(classes=10), CIFAR100, [4500] * 10, 100),
        (
            PRA(),
            TINY_VAL_AS_CLASS0,
            [8286, 8353, 7668, 8346, 8481, 8430, 8352, 8390, 7685, 8505],
            937,
        ),
        (PAT(classes=20), TINY_VAL_AS_CLASS0, [15_000] + [7500] * 9, 200),
        (PAT(classes=20), TINY, [8250] * 10, 200),
    ],
)
def test_published_sizes(scheme: Partition, labels: Labels, sizes: list[int], pairs: int) -> None:
    _, found_sizes, found_pairs = facts(scheme, labels)
    assert found_sizes == sizes and found_pairs == pairs


def test_samples_seen_in_full_batches_of_64() -> None:
    """The published counts of FedAllRep: representations of whole batches only."""
    for labels, scheme, seen in (
        (TINY_VAL_AS_CLASS0, PAT(classes=20), 82_368),
        (TINY, PAT(classes=20), 81_920),
        (TINY_TRAIN, PAT(classes=20), 74_880),
        (TINY_VAL_AS_CLASS0, PRA(), 82_176),
        (TINY, PRA(), 82_176),
        (TINY_TRAIN, PRA(), 74_688),
    ):
        assert sum(size // 64 * 64 for size in facts(scheme, labels)[1]) == seen


def test_hundred_clients_need_118_draws() -> None:
    assert facts(PRA(max_redraws=117), CIFAR10, clients=100)[2] == 394
    with pytest.raises(ConfigError, match="after 116 redraws"):
        split_clients(PRA(max_redraws=116), CIFAR10, 100, 0)


def test_hundred_clients_at_alpha_007_with_ten_samples_need_26_draws() -> None:
    scheme = PRA(alpha=0.07, min_samples=10, max_redraws=25)
    assert min(facts(scheme, CIFAR10, clients=100)[1]) >= 7
    with pytest.raises(ConfigError, match="after 24 redraws"):
        split_clients(PRA(alpha=0.07, min_samples=10, max_redraws=24), CIFAR10, 100, 0)
