"""Real images, where the environment variable FEDRE_TEST_DATA names their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedre_privacy.data.imagefolder import ImageFolder
from fedre_privacy.data.npz import Npz
from fedre_privacy.data.tinyimagenet import TinyImageNet

FOLDER = Path(os.environ.get("FEDRE_TEST_DATA", ""))

pytestmark = pytest.mark.skipif(
    "FEDRE_TEST_DATA" not in os.environ, reason="FEDRE_TEST_DATA is not set"
)

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def test_npz_cifar10() -> None:
    data = Npz(path=str(FOLDER / "cifar10-lossless-6k.npz")).load()
    assert len(data) == 6102 and data.num_train == 5085 and data.classes == CLASSES
    assert data.image_shape == (3, 32, 32)
    assert torch.bincount(data.labels[5085:]).tolist() == [
        105, 93, 100, 104, 92, 87, 114, 102, 110, 110,
    ]  # fmt: skip
    assert data.classes[data.labels[0]] == "frog"
    assert float(data.images[0].float().mean()) == pytest.approx(103.447265625, abs=1e-4)
    few = Npz(path=str(FOLDER / "cifar10-lossless-6k.npz"), per_class=4).load()
    assert torch.bincount(few.labels).tolist() == [8] * 10 and few.num_train == 40


def test_imagefolder_is_the_same_cifar10() -> None:
    data = ImageFolder(path=str(FOLDER / "cifar10-jpeg.zip"), per_class=3).load()
    assert data.classes == CLASSES and data.image_shape == (3, 32, 32)
    assert len(data) == 60 and data.num_train == 30
    assert data.labels.tolist() == [c for _ in range(2) for c in range(10) for _ in range(3)]
    lossless = Npz(path=str(FOLDER / "cifar10-lossless-6k.npz"), per_class=3).load()
    order = torch.cat([lossless.labels[:30].argsort(stable=True),
                       30 + lossless.labels[30:].argsort(stable=True)])  # fmt: skip
    error = (data.images.float() - lossless.images[order].float()).square().mean((1, 2, 3))
    assert error.max() < 400, "each image is a recompressed copy of the lossless one"


def test_tinyimagenet_both_labellings() -> None:
    path = str(FOLDER / "tiny-imagenet-200-subset.zip")
    right = TinyImageNet(path=path, per_class=2).load()
    wrong = TinyImageNet(path=path, per_class=2, val_as_class0=True).load()
    assert right.image_shape == (3, 64, 64) and right.num_classes == 200
    assert right.classes[0] == "n01443537" and list(right.classes) == sorted(right.classes)
    assert right.num_train == 400 and len(right) == 800
    assert torch.bincount(right.labels[400:]).tolist() == [2] * 200
    assert torch.equal(right.images, wrong.images)
    assert torch.equal(right.labels[:400], wrong.labels[:400]) and not wrong.labels[400:].any()
    assert right.notes == () and "398 of them wrongly" in wrong.notes[0]
