"""Random classes per client in nearly equal parts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.partition import split_clients
from fedre_privacy.partition.classes import Classes

CIFAR10 = np.repeat(np.arange(10), 6000)
CIFAR100 = np.repeat(np.arange(100), 600)
TINY = np.repeat(np.arange(200), 550)


@pytest.mark.parametrize(
    ("classes", "labels", "clients"),
    [(2, CIFAR10, 10), (2, CIFAR10, 50), (2, CIFAR10, 100)]
    + [(10, CIFAR100, clients) for clients in (10, 50, 100)]
    + [(20, TINY, 100), (30, CIFAR100, 100), (10, CIFAR10, 100)],
)
def test_published_settings(classes: int, labels: npt.NDArray[np.int64], clients: int) -> None:
    num_classes = int(labels.max()) + 1
    found = split_clients(Classes(classes=classes), labels, clients, 0, 0.8)
    every = np.concatenate([*found.train, *found.test])
    assert np.array_equal(np.sort(every), np.arange(len(labels)))
    held = np.zeros((clients, num_classes), dtype=int)
    for client, own in enumerate(zip(found.train, found.test, strict=True)):
        held[client] = np.bincount(labels[np.concatenate(own)], minlength=num_classes)
    owners, of_client = (held > 0).sum(0), (held > 0).sum(1)
    assert owners.min() >= 1 and owners.max() <= classes * clients // num_classes
    assert of_client.max() <= classes and of_client.mean() > 0.9 * classes  # some drawn twice
    # parts from U(0.4, 0.6): none is more than 1.5 times another, but for slots held twice
    for label in np.flatnonzero(owners == classes * clients // num_classes):
        parts = held[held[:, label] > 0, label]
        assert parts.max() <= 1.5 * parts.min() + 2


def test_a_validation_part_is_split_off_class_by_class() -> None:
    """FedMRL's code shares 40,000, 10,000 and 10,000 images out alike and leaves 10,000 unused."""
    found = split_clients(Classes(validation=0.2), CIFAR10, 10, 0, 5 / 6)
    train, test = np.concatenate(found.train), np.concatenate(found.test)
    assert abs(len(train) - 40_000) <= 40 and abs(len(test) - 10_000) <= 40
    assert not np.intersect1d(train, test).size and len(np.unique(train)) == len(train)
    for fitted, tested in zip(found.train, found.test, strict=True):
        shares = np.bincount(CIFAR10[fitted]), np.bincount(CIFAR10[tested], minlength=10)
        held = np.flatnonzero(shares[0])
        np.testing.assert_allclose(shares[1][held] / shares[0][held], 0.25, atol=0.01)


def test_parts_are_not_equal_and_their_samples_random() -> None:
    shares = Classes().assign(CIFAR10, 10, np.random.RandomState(0))
    sizes = {len(own) for own in shares}
    assert len(sizes) > 5
    own = shares[0][CIFAR10[shares[0]] == CIFAR10[shares[0][0]]]
    assert (np.diff(own) < 0).any() and np.ptp(own) > 5000


def test_seed_decides_who_has_what() -> None:
    first, again, other = (split_clients(Classes(), CIFAR10, 10, seed) for seed in (1, 1, 2))
    assert first.sha256_train == again.sha256_train != other.sha256_train
    assert (first.class_counts(CIFAR10, 10) > 0).tolist() != (
        other.class_counts(CIFAR10, 10) > 0
    ).tolist()


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(1, 6),
    clients=st.integers(1, 12),
    num_classes=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_all_of_it_or_a_refusal_whose_advice_works(
    classes: int, clients: int, num_classes: int, seed: int
) -> None:
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(num_classes), 80))
    slots = classes * clients
    if classes <= num_classes and slots % num_classes == 0:
        found = split_clients(Classes(classes=classes), labels, clients, seed)
        every = np.concatenate([*found.train, *found.test])
        assert np.array_equal(np.sort(every), np.arange(len(labels)))
        return
    with pytest.raises(IncompatibleError) as caught:
        split_clients(Classes(classes=classes), labels, clients, seed)
    words = str(caught.value.next_step).removesuffix(".").split()
    for word in words:
        if word.startswith("classes:"):
            split_clients(
                Classes(classes=int(word.removeprefix("classes:"))), labels, clients, seed
            )
    if "clients," in words:
        split_clients(
            Classes(classes=classes), labels, int(words[words.index("clients,") - 1]), seed
        )


@pytest.mark.parametrize(
    ("classes", "clients", "said"),
    [
        (3, 25, "75 slots cannot be shared equally by 10 classes"),
        (1, 5, "nobody would get 5 of the 10 classes"),
        (11, 10, "the data have 10 classes"),
    ],
)
def test_refusals(classes: int, clients: int, said: str) -> None:
    with pytest.raises(IncompatibleError) as caught:
        split_clients(Classes(classes=classes), CIFAR10, clients, 0)
    assert f"'classes' with {classes} for each of {clients} clients: {said}." in str(caught.value)
    assert "Use classes:" in str(caught.value)


def test_a_class_too_small_for_its_slots() -> None:
    labels = np.concatenate([np.repeat(np.arange(9), 100), [9] * 12])
    with pytest.raises(IncompatibleError, match="class 9 has 12 samples, too few for its 20 slots"):
        split_clients(Classes(), labels, 100, 0)
