"""Data sets that need no file."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import torch

from fedre_privacy.core.errors import MissingInputError
from fedre_privacy.data import ImageData, photos
from fedre_privacy.data.digits import Digits
from fedre_privacy.data.photos import PHOTOS, Photos


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a built-in data set opened a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_digits_are_the_scans() -> None:
    from sklearn.datasets import load_digits

    scans = load_digits()
    data = Digits(size=8).load()
    assert data.image_shape == (1, 8, 8) and len(data) == data.num_train == 1797
    assert np.abs(data.images[:, 0].numpy() - scans.images * 255 / 16).max() <= 0.5
    assert data.images.min() == 0 and data.images.max() == 255
    assert data.labels.tolist() == scans.target.tolist()
    assert data.classes == tuple("0123456789")


def test_digits_golden() -> None:
    data = Digits().load()
    assert data.image_shape == (1, 24, 24)
    assert data.sha256[:16] == "6f54d58e74f7fc7c"
    # Enlarging keeps the mean but for the doubled weight of edge pixels and rounding.
    small = Digits(size=8).load().images.float().mean()
    assert abs(float(data.images.float().mean() - small)) < 0.5


def test_digits_per_class() -> None:
    data = Digits(per_class=7).load()
    assert torch.bincount(data.labels).tolist() == [7] * 10 and data.num_train == 70


@pytest.fixture(scope="module")
def crops() -> ImageData:
    return Photos(per_photo=40).load()


def test_photos_shape_and_labels(crops: ImageData) -> None:
    assert crops.image_shape == (3, 32, 32) and crops.num_train == len(crops) == 320
    assert torch.bincount(crops.labels).tolist() == [40] * 8
    assert crops.classes == tuple(label for label, *_ in PHOTOS)
    assert "overlap" in crops.notes[0]


def test_photos_depend_on_seed_only(crops: ImageData) -> None:
    few = Photos(per_photo=40, per_class=5).load()
    for label in range(8):
        assert torch.equal(few.images[few.labels == label], crops.images[crops.labels == label][:5])
    assert Photos(per_photo=5, seed=1).load().sha256 != few.sha256
    assert Photos(per_photo=5, seed=0).load().sha256 == few.sha256


def test_photos_are_neither_empty_nor_alike(crops: ImageData) -> None:
    grey = crops.images.float().mean(1).flatten(1)
    assert grey.std(dim=1).min() >= photos.MIN_CONTRAST
    for label in range(8):
        own = crops.images[crops.labels == label].flatten(1)
        assert len(own.unique(dim=0)) == 40
    # The mean colour alone tells red discs from starry black.
    colour = torch.stack([crops.images[crops.labels == c].float().mean((0, 2, 3)) for c in (4, 5)])
    assert colour[0].max() < 60 and colour[1][0] > 120


def test_photos_size() -> None:
    assert Photos(size=16, per_photo=2).load().image_shape == (3, 16, 16)


def test_photos_without_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "PHOTOS", (("cat", "no-such-cat.png", 0.2, 0.6),))
    with pytest.raises(MissingInputError, match="no-such-cat.png(?s:.)*--dataset digits"):
        Photos().load()
