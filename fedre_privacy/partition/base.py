"""What a partition is, and the split of each client's images into training and test."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..core.config import knob
from ..core.errors import ConfigError, IncompatibleError
from ..core.registry import Registry
from ..core.units import first_few, plural

IntArray = npt.NDArray[np.int64]


partitions: Registry[Partition] = Registry("partition", "fedre_privacy.partition")


@partitions.base
@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Base of all partitions: settings, and `assign`.

    A partition is a frozen, keyword-only dataclass registered with
    ``partitions.register(name)``.
    """

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another partition: a clause of at most 100 characters."""
    shorthand: ClassVar[str] = ""
    """The setting that ``--partition NAME:VALUE`` gives; empty: it takes none."""
    also: ClassVar[tuple[str, ...]] = ()
    """What else the field calls it: whoever gives such a word is told the name."""

    seed: int | None = knob(
        None,
        help="seed of who gets which samples, 0 for published partitions; none: that of the run",
        ge=0,
        later=True,
    )

    @abstractmethod
    def assign(
        self, labels: IntArray, num_clients: int, random: np.random.RandomState
    ) -> list[IntArray]:
        """Return the samples of each client; no sample twice, no class left out.

        Args:
            labels: class of each sample (N,), values >= 0.
            num_clients: K >= 1, at most N.
            random: NumPy's legacy generator; the stream that `split_clients` goes on with.

        Raises:
            IncompatibleError: these labels cannot be shared out in this way.
        """

    def split_client(
        self, own: IntArray, labels: IntArray, train_ratio: float, random: np.random.RandomState
    ) -> tuple[IntArray, IntArray]:
        """Split a client's samples into training and test, in that order.

        By default a random part of ``floor(train_ratio * n)`` samples is trained on.
        """
        order = random.permutation(len(own))
        num_test = len(own) - _num_train(len(own), train_ratio)
        return own[order[num_test:]], own[order[:num_test]]

    def thin(self, train: list[IntArray], labels: IntArray) -> list[IntArray]:
        """Leave out training samples once the test samples are set aside; by default none.

        Returns:
            Some of each client's samples, at least one.
        """
        return train


@dataclass(frozen=True, eq=False)
class ClientSplit:
    """Indices of the training and of the test samples of each client.

    Args:
        train, test: one int64 array per client, in client order; disjoint.
    """

    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]

    @property
    def sha256_train(self) -> str:
        """First 16 hex digits of the SHA-256 of the training indices (see `sha256_test`)."""
        return _sha256(self.train)

    @property
    def sha256_test(self) -> str:
        """First 16 hex digits of the SHA-256 of the concatenated little-endian int64 indices."""
        return _sha256(self.test)

    def class_counts(self, labels: npt.NDArray[Any], num_classes: int) -> IntArray:
        """Count the training samples of each client and class: (K, num_classes)."""
        return np.stack([np.bincount(labels[own], minlength=num_classes) for own in self.train])


def _sha256(parts: Sequence[IntArray]) -> str:
    return hashlib.sha256(np.concatenate(parts).astype("<i8").tobytes()).hexdigest()[:16]


def split_clients(
    scheme: Partition,
    labels: npt.NDArray[Any],
    num_clients: int,
    seed: int | Sequence[int],
    train_ratio: float = 0.75,
) -> ClientSplit:
    """Share samples out to clients, then split each client's share into training and test.

    One legacy NumPy generator serves both, so that seed 0 gives the published partitions index
    for index. Each client's share is permuted; the first entries are its test samples, the
    following ``floor(train_ratio * n)`` its training samples, of which a scheme may `thin` some.

    Args:
        labels: class of each sample (N,), integers >= 0; original training set first, then
            the original test set.
        seed: seed of the generator, 0..2**32-1, or several of them.
        train_ratio: share of a client's samples that it trains on, inside (0, 1).

    Raises:
        ConfigError: a number out of its range.
        IncompatibleError: fewer samples than clients, a client without training samples, a
            class that nobody gets, or a scheme that gives out a sample twice.

    Reference: the partition generators of PFLlib (JMLR 2025), which the FedRE paper uses.
    """
    _check_settings(num_clients, seed, train_ratio)
    labels = _check_labels(labels, num_clients)
    random = np.random.RandomState(seed)
    shares = [np.asarray(own, np.int64) for own in scheme.assign(labels, num_clients, random)]
    _check_shares(scheme, shares, labels, num_clients, train_ratio)
    train, test = [], []
    for own in shares:
        kept, tested = scheme.split_client(own, labels, train_ratio, random)
        train.append(kept)
        test.append(tested)
    return ClientSplit(tuple(scheme.thin(train, labels)), tuple(test))


def nearest_numbers(works: Callable[[int], bool], num_classes: int, asked: int) -> list[int]:
    """The numbers of classes a client next below and above the one asked for that would work."""
    fit = [number for number in range(1, num_classes + 1) if works(number)]
    return [n for n in fit if n < asked][-1:] + [n for n in fit if n > asked][:1]


def _num_train(count: int, train_ratio: float) -> int:
    return int(np.floor(train_ratio * count))


def _check_settings(num_clients: int, seed: int | Sequence[int], train_ratio: float) -> None:
    problems = []
    if num_clients < 1:
        problems.append(f"num_clients is {num_clients}; it must be >= 1.")
    if not all(0 <= word < 2**32 for word in ([seed] if isinstance(seed, int) else seed)):
        problems.append(f"The partition's seed is {seed}; it must be >= 0 and < 2**32.")
    if not 0 < train_ratio < 1:
        problems.append(f"train_ratio is {train_ratio}; it must be > 0 and < 1. Default: 0.75.")
    if problems:
        raise ConfigError(*problems)


def _check_labels(labels: npt.NDArray[Any], num_clients: int) -> IntArray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "ui" or (len(labels) and labels.min() < 0):
        raise IncompatibleError(
            f"Labels to partition are {labels.dtype} of shape {labels.shape}. Needed: one class "
            "number >= 0 per sample, integers of shape (N,)."
        )
    if len(labels) < num_clients:
        raise IncompatibleError(
            f"{plural(num_clients, 'client')} cannot share {plural(len(labels), 'sample')}. "
            "Needed: at least one sample per client.",
            next_step="Use fewer clients (--clients) or more images.",
        )
    return labels.astype(np.int64)


def _check_shares(
    scheme: Partition,
    shares: list[IntArray],
    labels: IntArray,
    num_clients: int,
    train_ratio: float,
) -> None:
    problems = []
    every = np.concatenate([np.empty(0, np.int64), *shares])
    given = np.bincount(every[(every >= 0) & (every < len(labels))], minlength=len(labels))
    if len(shares) != num_clients:
        problems.append(f"it made {len(shares)} shares for {plural(num_clients, 'client')}")
    if given.sum() != len(every):
        problems.append(f"it gave out samples outside 0..{len(labels) - 1}")
    if given.max() > 1:
        problems.append(f"it gave sample {int(given.argmax())} out {given.max()} times")
    lost = np.setdiff1d(labels, labels[given > 0])
    if len(lost):
        problems.append(f"nobody gets class {', '.join(map(str, lost))}")
    poor = [
        f"client {client} ({plural(len(own), 'sample') if len(own) else 'none'})"
        for client, own in enumerate(shares)
        if _num_train(len(own), train_ratio) < 1
    ]
    if poor:
        problems.append(
            f"too few samples to train on at {first_few(poor)}; at least "
            f"{ceil(1 / train_ratio)} are needed"
        )
    if problems:
        raise IncompatibleError(
            *(f"Partition '{scheme.name}': {problem}." for problem in problems),
            next_step="Use fewer clients (--clients), more images, or another --partition.",
        )
