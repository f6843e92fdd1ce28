"""Long tails: class sizes, who gets them, and what stays of the test samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.partition import split_clients
from fedre_privacy.partition.longtail import LongTail, long_tail_sizes
from fedre_privacy.partition.pra import PRA

CIFAR10 = np.repeat(np.arange(10), 6000)
IF100 = [6000, 3596, 2156, 1292, 774, 464, 278, 166, 100, 60]
IF50 = [6000, 3884, 2515, 1628, 1054, 682, 442, 286, 185, 120]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imbalance", "sizes", "total"), [(100, IF100, 14_886), (50, IF50, 16_796)]
)
def test_published_class_sizes(imbalance: float, sizes: list[int], total: int) -> None:
    assert long_tail_sizes(np.full(10, 6000), imbalance).tolist() == sizes
    found = split_clients(LongTail(imbalance=imbalance), CIFAR10, 100, 0)
    every = np.concatenate([*found.train, *found.test])
    assert len(every) == len(np.unique(every)) == total
    assert np.bincount(CIFAR10[every]).tolist() == sizes
    assert min(len(own) for own in found.train) >= 2  # for BatchNorm


def test_each_class_keeps_its_first_samples() -> None:
    labels = np.tile(np.arange(4), 100)
    found = split_clients(LongTail(imbalance=8, alpha=1), labels, 4, 0)
    every = np.sort(np.concatenate([*found.train, *found.test]))
    kept = [np.flatnonzero(labels == c)[:size] for c, size in enumerate((100, 50, 25, 12))]
    assert np.array_equal(every, np.sort(np.concatenate(kept)))


def test_imbalance_one_is_pra() -> None:
    labels = np.random.RandomState(0).permutation(np.repeat(np.arange(10), 100))
    tail = split_clients(LongTail(imbalance=1, alpha=0.3, min_samples=10), labels, 10, 5)
    plain = split_clients(PRA(alpha=0.3, min_samples=10), labels, 10, 5)
    assert tail.sha256_train == plain.sha256_train and tail.sha256_test == plain.sha256_test


def test_sizes_of_unequal_classes_are_never_exceeded() -> None:
    assert long_tail_sizes(np.array([50, 100, 3]), 4).tolist() == [50, 50, 3]
    assert long_tail_sizes(np.array([7]), 100).tolist() == [7]
    for factor in (3, 7, 10, 49, 1000):  # n_max / factor is whole: no rounding below it
        assert long_tail_sizes(np.full(5, factor * 6), factor)[-1] == 6


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 20),
    seed=st.integers(0, 1000),
    imbalance=st.floats(1, 100),
    balanced=st.booleans(),
)
def test_no_sample_twice_and_no_client_empty(
    clients: int, seed: int, imbalance: float, balanced: bool
) -> None:
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(6), 120))
    scheme = LongTail(imbalance=imbalance, alpha=0.5, balanced_test=balanced)
    found = split_clients(scheme, labels, clients, seed)
    every = np.concatenate([*found.train, *found.test])
    assert len(np.unique(every)) == len(every)
    assert min(len(own) for own in (*found.train, *found.test)) >= 1
    assert set(labels[every]) == set(range(6))


def test_balanced_test_cuts_the_training_samples_only() -> None:
    whole = split_clients(PRA(alpha=0.5, min_samples=3), CIFAR10, 10, 0)
    found = split_clients(LongTail(alpha=0.5, balanced_test=True), CIFAR10, 10, 0)
    assert found.sha256_test == whole.sha256_test
    tested = np.bincount(CIFAR10[np.concatenate(found.test)])
    assert tested.min() > 0.9 * tested.max()
    before, after = (s.class_counts(CIFAR10, 10) for s in (whole, found))
    factor = np.array(IF100) / 6000
    expected = np.minimum(before, np.maximum(np.floor(before * factor + 1e-9), 2))
    assert np.array_equal(after, expected)
    for own, all_of_it in zip(found.train, whole.train, strict=True):
        assert np.array_equal(own, all_of_it[np.isin(all_of_it, own)])  # order is kept
    cut = split_clients(LongTail(alpha=0.5), CIFAR10, 10, 0)
    lopsided = np.bincount(CIFAR10[np.concatenate(cut.test)])
    assert lopsided.max() > 50 * lopsided.min()


# --- refusals ------------------------------------------------------------------------------------


def test_a_class_that_would_vanish_is_named() -> None:
    with pytest.raises(IncompatibleError) as caught:
        split_clients(LongTail(imbalance=100), np.repeat(np.arange(10), 50), 4, 0)
    assert "'longtail' with imbalance 100: class 8, 9 would keep no sample" in str(caught.value)
    assert "Use longtail:50 or less." in str(caught.value)


def test_a_starved_client_is_refused_in_its_own_name() -> None:
    scheme = LongTail(min_samples=10, max_redraws=5)
    with pytest.raises(ConfigError) as caught:
        split_clients(scheme, CIFAR10, 100, 0)
    assert "'longtail' (alpha=0.07, 100 clients): after 5 redraws some client" in str(caught.value)
    with pytest.raises(IncompatibleError, match="'longtail': min_samples=200 for each of 100"):
        split_clients(LongTail(min_samples=200), CIFAR10, 100, 0)
