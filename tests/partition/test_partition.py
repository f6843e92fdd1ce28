"""Properties and refusals of partitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedre_privacy.core.config import build
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.partition import Partition, partitions, split_clients
from fedre_privacy.partition.base import IntArray
from fedre_privacy.partition.iid import IID
from fedre_privacy.partition.pat import PAT
from fedre_privacy.partition.pra import PRA, published_minimum

BALANCED = np.repeat(np.arange(10), 100)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    scheme=st.sampled_from(
        [IID(), PRA(max_redraws=20), PRA(alpha=0.001, min_samples=2, max_redraws=20),
         PRA(alpha=5), PAT(classes=1), PAT(classes=2), PAT(classes=3)]
    ),
)  # fmt: skip
def test_every_sample_is_assigned_exactly_once_or_it_is_refused(
    sizes: list[int], clients: int, seed: int, scheme: Partition
) -> None:
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    try:
        found = split_clients(scheme, labels, clients, seed)
    except (ConfigError, IncompatibleError):
        return
    every = np.concatenate([*found.train, *found.test])
    assert np.array_equal(np.sort(every), np.arange(len(labels)))
    assert len(found.train) == len(found.test) == clients
    for train, test in zip(found.train, found.test, strict=True):
        assert len(train) >= 1 and len(test) >= 1
        assert len(train) == (len(train) + len(test)) * 3 // 4
        assert train.dtype == test.dtype == np.int64


@pytest.mark.parametrize("scheme", [IID(), PRA(), PRA(alpha=10), PAT(), PAT(classes=5)])
@pytest.mark.parametrize("train_ratio", [0.5, 0.75, 0.9])
def test_usual_settings_are_not_refused(scheme: Partition, train_ratio: float) -> None:
    found = split_clients(scheme, BALANCED, 10, 3, train_ratio)
    every = np.concatenate([*found.train, *found.test])
    assert np.array_equal(np.sort(every), np.arange(1000))
    total = sum(len(own) for own in found.train)
    assert 1000 * train_ratio - 10 < total <= 1000 * train_ratio


def test_seed_decides() -> None:
    for scheme in (IID(), PRA(), PAT()):
        first, again, other = (split_clients(scheme, BALANCED, 10, seed) for seed in (1, 1, 2))
        assert first.sha256_train == again.sha256_train != other.sha256_train
        assert first.sha256_test == again.sha256_test != other.sha256_test
        assert first.sha256_train != first.sha256_test and len(first.sha256_train) == 16


def test_the_global_generator_is_left_alone() -> None:
    np.random.seed(5)
    expected = np.random.RandomState(5).rand()
    split_clients(PRA(), BALANCED, 10, 0)
    assert np.random.rand() == expected


def test_class_counts() -> None:
    found = split_clients(PAT(), BALANCED, 10, 0)
    counts = found.class_counts(BALANCED, 12)
    assert counts.shape == (10, 12) and not counts[:, 10:].any()
    for client, own in enumerate(found.train):
        assert [(BALANCED[own] == c).sum() for c in range(10)] == counts[client, :10].tolist()


def test_iid_mixes_classes() -> None:
    counts = split_clients(IID(), np.repeat(np.arange(10), 600), 10, 0).class_counts(
        BALANCED.repeat(6), 10
    )
    assert counts.min() > 20 and counts.max() < 75


def test_pra_skew_falls_with_alpha() -> None:
    labels = np.repeat(np.arange(10), 600)
    largest = [
        (c := split_clients(PRA(alpha=alpha), labels, 10, 0).class_counts(labels, 10)).max(1)
        / c.sum(1)
        for alpha in (0.1, 1.0, 100.0)
    ]
    assert largest[0].mean() > largest[1].mean() > largest[2].mean()
    # 0.17, not 0.10: full clients miss the last classes (the N/K cap).
    assert largest[2].mean() < 0.2


def test_pra_minimum_holds() -> None:
    assert published_minimum(60_000, 10) == 40 and published_minimum(600, 10) == 30
    for scheme, least in ((PRA(), 40), (PRA(min_samples=60), 60)):
        for seed in range(5):
            found = split_clients(scheme, BALANCED, 10, seed)
            sizes = [len(a) + len(b) for a, b in zip(found.train, found.test, strict=True)]
            assert min(sizes) >= least


def test_pra_extreme_skew_gives_each_class_to_one_client() -> None:
    counts = split_clients(PRA(alpha=1e-6), BALANCED, 10, 0).class_counts(BALANCED, 10)
    assert (counts > 0).sum() == 10


def test_pat_order_of_clients() -> None:
    counts = split_clients(PAT(), BALANCED, 10, 0).class_counts(BALANCED, 10)
    for client in range(10):
        assert np.flatnonzero(counts[client]).tolist() == [client // 2 * 2, client // 2 * 2 + 1]


def test_pat_gives_consecutive_runs() -> None:
    shares = PAT().assign(BALANCED, 10, np.random.RandomState(0))
    assert np.array_equal(np.sort(np.concatenate(shares[:2])), np.arange(200))
    for own in shares:
        for label in np.unique(BALANCED[own]):
            assert (np.diff(own[BALANCED[own] == label]) == 1).all()


def test_pat_takes_labels_with_gaps() -> None:
    labels = np.repeat([0, 3, 7, 9], 100)
    counts = split_clients(PAT(), labels, 4, 0).class_counts(labels, 10)
    assert np.flatnonzero(counts.sum(0)).tolist() == [0, 3, 7, 9]


# --- refusals ------------------------------------------------------------------------------------


def refusal(
    scheme: Partition, labels: npt.NDArray[np.int64], clients: int, error: type[Exception]
) -> str:
    with pytest.raises(error) as caught:
        split_clients(scheme, labels, clients, 0)
    return str(caught.value)


def test_pat_says_which_classes_would_be_dropped_and_what_works() -> None:
    said = refusal(PAT(classes=10), np.repeat(np.arange(100), 600), 25, IncompatibleError)
    assert "'pat' with 10 classes for each of 25 clients: nobody would get class 90, 91," in said
    assert "Use pat:8 or pat:12 or another number of clients." in said
    for number in (8, 12):
        labels = np.repeat(np.arange(100), 600)
        counts = split_clients(PAT(classes=number), labels, 25, 0).class_counts(labels, 100)
        assert (counts.sum(0) > 0).all()


def test_pat_refuses_more_classes_than_there_are() -> None:
    said = refusal(PAT(classes=11), BALANCED, 10, IncompatibleError)
    assert "the data have 10 classes" in said and "Use pat:10 or" in said
    said = refusal(PAT(classes=3), BALANCED, 2, IncompatibleError)
    assert "nobody would get class 6, 7, 8, 9" in said and "pat:5" in said


def test_pat_gives_every_client_a_class() -> None:
    for classes in range(1, 5):
        labels = np.repeat(np.arange(4), 200)
        counts = split_clients(PAT(classes=classes), labels, 7, 0).class_counts(labels, 4)
        present = (counts > 0).sum(1)
        assert present.min() >= 1 and present.max() <= classes


def test_pat_refuses_classes_too_small_to_share() -> None:
    labels = np.concatenate([np.repeat(np.arange(9), 100), [9]])
    said = refusal(PAT(), labels, 10, IncompatibleError)
    assert "class 9 has too few samples to share in random parts among clients 8, 9" in said


def test_pra_gives_up_and_says_what_to_change() -> None:
    said = refusal(PRA(alpha=0.01, max_redraws=3), BALANCED, 40, ConfigError)
    assert "'pra' (alpha=0.01, 40 clients): after 3 redraws some client still has fewer" in said
    assert "than 12 samples (at best, client " in said
    for part in ("larger alpha", "fewer clients", "smaller min_samples (now 12)",
                 "larger max_redraws (now 3), or --partition iid"):  # fmt: skip
        assert part in said


def test_pra_of_one_class_says_what_shares_it_out() -> None:
    one = np.zeros(200, dtype=np.int64)
    said = refusal(PRA(alpha=0.1, max_redraws=3), one, 10, ConfigError)
    assert "give --partition iid" in said and "larger alpha" not in said


def test_pra_refuses_an_impossible_minimum_at_once() -> None:
    said = refusal(PRA(min_samples=101), BALANCED, 10, IncompatibleError)
    assert "min_samples=101 for each of 10 clients needs 1010 samples; there are 1000" in said
    assert "Lower min_samples to 100" in said


def test_more_clients_than_samples() -> None:
    for scheme in (IID(), PRA(), PAT()):
        said = refusal(scheme, np.array([0, 1]), 3, IncompatibleError)
        assert "3 clients cannot share 2 samples" in said and "--clients" in said


def test_a_client_with_too_few_samples_is_named() -> None:
    said = refusal(IID(), np.zeros(7, dtype=np.int64), 5, IncompatibleError)
    assert "too few samples to train on at client 2 (1 sample), client 3 (1 sample)" in said
    assert "at least 2 are needed" in said


@dataclass(frozen=True, kw_only=True)
class Wrong(Partition):
    """Returns what it was given."""

    shares: tuple[tuple[int, ...], ...] = ()

    def assign(
        self, labels: IntArray, num_clients: int, random: np.random.RandomState
    ) -> list[IntArray]:
        return [np.array(own, dtype=np.int64) for own in self.shares]


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (((0, 1, 2), (3, 4, 4)), "it gave sample 4 out 2 times"),
        (((0, 1, 2), (3, 4, 9)), "it gave out samples outside 0..5"),
        (((0, 1), (2, 3)), "nobody gets class 2"),
        (((0, 1, 2, 3, 4, 5), ()), "at client 1 (none)"),
        (((0, 1, 2, 3, 4, 5),), "it made 1 shares for 2 clients"),
        ((), "it made 0 shares for 2 clients"),
    ],
)
def test_a_wrong_scheme_is_caught(shares: tuple[tuple[int, ...], ...], said: str) -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    assert said in refusal(Wrong(shares=shares), labels, 2, IncompatibleError)


def test_numbers_out_of_range_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        split_clients(IID(), BALANCED, 0, -1, 1.0)
    assert len(caught.value.problems) == 3
    for part in ("num_clients is 0", "seed is -1", "train_ratio is 1.0"):
        assert part in str(caught.value)


@pytest.mark.parametrize("labels", [np.zeros((4, 1), int), np.zeros(4), np.array([0, -1, 0, 0])])
def test_wrong_labels(labels: npt.NDArray[np.int64]) -> None:
    assert "one class number >= 0 per sample" in refusal(IID(), labels, 2, IncompatibleError)


def test_registry_and_bounds() -> None:
    assert set(partitions.names()) >= {"iid", "pat", "pra"}
    problems: list[str] = []
    for name, key in (("pra", "alpha"), ("pra", "min_samples"), ("pat", "classes")):
        assert build(partitions.get(name), {key: 0}, at=name, problems=problems) is None
    assert len(problems) == 3
    assert build(partitions.get("pra"), {"max_redraws": 0}, at="pra", problems=[]) is not None
