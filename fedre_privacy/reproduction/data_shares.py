"""The data sets behind the published communication tables, shared out as there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedre_privacy.core.errors import DamagedInputError, IncompatibleError, MissingInputError
from fedre_privacy.data.base import datasets
from fedre_privacy.partition.base import ClientSplit, Partition, split_clients
from fedre_privacy.partition.pra import PRA

from .published_tables import CIFAR10_PRA_SHA256, CLIENTS, DATA_SETS, PublishedData

Labels = npt.NDArray[np.int64]


def published_labels(data: PublishedData) -> Labels:
    """Labels (N,) of the class sizes that a table was made with, in class order.

    Sizes of shares and pairs do not depend on the order, only on the number of each class.
    """
    ordered = np.repeat(np.arange(data.num_classes), data.per_class)
    return np.concatenate([ordered, np.zeros(data.mislabelled, np.int64)])


def read_labels(path: Path) -> Labels:
    """Read CIFAR-10's labels, training then test part, from a ``.npy`` file; never a pickle.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: not a plain ``.npy`` array.
        IncompatibleError: not 60,000 integers, or not 6,000 of each of ten classes.
    """
    hint = "Save the 50,000 training and then the 10,000 test labels with numpy.save."
    if not path.is_file():
        raise MissingInputError(f"No labels at {path}.", next_step=hint)
    try:
        labels = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DamagedInputError(
            f"{path} is not a readable .npy file: {reason}.", next_step=hint
        ) from None
    if not isinstance(labels, np.ndarray):
        labels.close()
        raise DamagedInputError(f"{path} is an .npz archive; a .npy file is needed.")
    return check_cifar10(labels, str(path))


def check_cifar10(labels: npt.NDArray[Any], source: str) -> Labels:
    """Refuse labels that cannot be CIFAR-10's.

    Raises:
        IncompatibleError: not 60,000 integers, or not 6,000 of each of ten classes.
    """
    data = DATA_SETS["cifar10"]
    count = data.num_classes * data.per_class
    if labels.shape != (count,) or labels.dtype.kind not in "ui":
        raise IncompatibleError(
            f"{source} holds {labels.dtype} of shape {labels.shape}; CIFAR-10 has integers of "
            f"shape ({count},), training labels first."
        )
    whole = labels.astype(np.int64)
    classes, sizes = np.unique(whole, return_counts=True)
    if classes.tolist() != list(range(data.num_classes)) or set(sizes) != {data.per_class}:
        listed = ", ".join(f"{c}: {n}" for c, n in list(zip(classes, sizes, strict=True))[:10])
        raise IncompatibleError(
            f"{source} is not CIFAR-10's: {data.per_class} of each class 0 to 9 are needed; "
            f"found {listed}{', ...' if len(classes) > 10 else ''}."
        )
    return whole


def cifar10_labels(folder: str) -> Labels:
    """Labels of the CIFAR-10 files in a folder; nothing is downloaded.

    Raises:
        MissingInputError: the files are not there.
    """
    dataset = datasets.get("cifar10")(path=folder, download=False)  # type: ignore[call-arg]
    return check_cifar10(dataset.load().labels.numpy(), f"CIFAR-10 in {folder}")


@dataclass(frozen=True, eq=False)
class Shares:
    """A data set shared out as in the FedRE tables (seed 0, 75 % for training).

    Args:
        source: where the labels come from, in words.
        class_counts: training samples (K, C).
        matched: whether the indices are the published ones; None where the order is not known.
    """

    source: str
    class_counts: npt.NDArray[np.int64]
    matched: bool | None = None

    @property
    def pairs(self) -> int:
        """P."""
        return int((self.class_counts > 0).sum())

    @property
    def in_batches(self) -> int:
        """Training samples in whole batches of 64, as FedAllRep's published numbers count."""
        return int((self.class_counts.sum(1) // 64 * 64).sum())


def split_counts(labels: Labels, scheme: Partition, classes: int) -> tuple[ClientSplit, Labels]:
    """Split labels among the clients of the tables; the split, and its class counts (K, C)."""
    found = split_clients(scheme, labels, CLIENTS, 0)
    return found, found.class_counts(labels, classes)


def share_out(key: str, labels: Labels | None = None, source: str = "") -> Shares:
    """Share a data set of the tables out by Dirichlet shares (PRA, alpha 0.1).

    Args:
        key: of `DATA_SETS`.
        labels: CIFAR-10's own, else class sizes stand in for them.
        source: where they come from.
    """
    data = DATA_SETS[key]
    if labels is None:
        source = "in class order; P depends on class sizes alone"
        return Shares(source, split_counts(published_labels(data), PRA(), data.num_classes)[1])
    found, counts = split_counts(labels, PRA(), data.num_classes)
    return Shares(source, counts, found.sha256_train == CIFAR10_PRA_SHA256)
