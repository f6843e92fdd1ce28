"""CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST, read and fetched by torchvision."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ..core.config import knob
from ..core.errors import MissingInputError
from .arrays import USUAL, as_labels, read_pixels
from .base import BUILT_IN, Dataset, ImageData, at_hand, datasets, keep_per_class

TIMEOUT_S = 20.0
"""Longest silence of a server before a download counts as failed."""

FAILURES = (OSError, RuntimeError, http.client.HTTPException)


@dataclass(frozen=True, kw_only=True)
class TorchvisionDataset(Dataset):
    """Base of the data sets that torchvision knows: training part, then test part.

    Files already there are used as they are; only then is the network tried.

    Raises:
        MissingInputError: absent, and not to be had.
    """

    torchvision_name: ClassVar[str]
    place: ClassVar[str]
    """What has to lie in the folder for a load without network."""

    path: str | None = knob(
        None, help="folder to look in and to download to; none: $FEDRE_DATA, else 'data'"
    )
    download: bool = knob(True, help="fetch the files when they are not there")

    def sources(self) -> tuple[Path, ...]:
        return (self._root().resolve(),)

    def _root(self) -> Path:
        return at_hand(self.path or os.environ.get("FEDRE_DATA") or "data")

    def load(self) -> ImageData:
        root = self._root()
        try:
            parts = self._parts(root, download=False)
        except FAILURES as error:
            if not self.download:
                raise self._absent(root, f"download is off; {error}") from None
            try:
                with _timeout(TIMEOUT_S):
                    parts = self._parts(root, download=True)
            except FAILURES as error:
                raise self._absent(root, f"the download failed: {error}") from None
        images = [
            read_pixels(np.asarray(part.data), f"{self.name} images", channels=USUAL).bytes()
            for part in parts
        ]
        labels = [
            as_labels(np.asarray(part.targets), f"{self.name} labels", count=len(found))
            for part, found in zip(parts, images, strict=True)
        ]
        data = ImageData(
            name=self.name,
            images=torch.cat(images),
            labels=torch.cat(labels),
            classes=tuple(parts[0].classes),
            num_train=len(images[0]),
        )
        return keep_per_class(data, self.per_class)

    def _parts(self, root: Path, *, download: bool) -> list[Any]:
        from torchvision import datasets as known  # slow to import

        source = getattr(known, self.torchvision_name)
        return [source(root, train=train, download=download) for train in (True, False)]

    def _absent(self, root: Path, why: str) -> MissingInputError:
        reason = " ".join(why.split()).rstrip(".")
        return MissingInputError(
            f"Data set '{self.name}' is not (whole) in {root.absolute()}; {reason}.",
            next_step=f"Put {self.place} into a folder DIR and give it with --data-dir DIR (or "
            f"set FEDRE_DATA), or run once with a network. {BUILT_IN}",
        )


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Bound the silence of every socket opened inside the block (torchvision sets no bound)."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@datasets.register("cifar10")
@dataclass(frozen=True, kw_only=True)
class Cifar10(TorchvisionDataset):
    """Load CIFAR-10: 50,000 + 10,000 colour images, 32x32, 10 classes, in the official order.

    The official files are Python pickles. torchvision opens them only when their MD5 equals
    that of the published files; nothing else is ever unpickled.

    Reference: A. Krizhevsky, Learning multiple layers of features from tiny images, 2009.
    """

    when_to_use = "the field's usual colour images, to compare with papers"
    also = ("cifar",)

    torchvision_name = "CIFAR10"
    place = "cifar-10-python.tar.gz, or the folder cifar-10-batches-py from inside it,"


@datasets.register("cifar100")
@dataclass(frozen=True, kw_only=True)
class Cifar100(TorchvisionDataset):
    """Load CIFAR-100: 50,000 + 10,000 colour images, 32x32, 100 fine classes, official order.

    Its files are pickles as well, see `Cifar10`.

    Reference: A. Krizhevsky, Learning multiple layers of features from tiny images, 2009.
    """

    when_to_use = "many classes with few images each, to compare with papers"
    torchvision_name = "CIFAR100"
    place = "cifar-100-python.tar.gz, or the folder cifar-100-python from inside it,"


@datasets.register("mnist")
@dataclass(frozen=True, kw_only=True)
class Mnist(TorchvisionDataset):
    """Load MNIST: 60,000 + 10,000 grey handwritten digits, 28x28, in the official order.

    Reference: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to
        document recognition, Proceedings of the IEEE 1998.
    """

    when_to_use = "28-pixel digits, to compare with papers"
    torchvision_name = "MNIST"
    place = "the four *-ubyte.gz files, in its sub-folder MNIST/raw,"


@datasets.register("fashion-mnist")
@dataclass(frozen=True, kw_only=True)
class FashionMnist(TorchvisionDataset):
    """Load Fashion-MNIST: 60,000 + 10,000 grey images, 28x28, 10 classes, in the official order.

    Reference: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017.
    """

    when_to_use = "28-pixel grey images that are harder than digits"
    also = ("fmnist", "fashion")

    torchvision_name = "FashionMNIST"
    place = "the four *-ubyte.gz files, in its sub-folder FashionMNIST/raw,"
