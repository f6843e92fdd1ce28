"""Many images live in a file that nobody sees, and are the same images there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedre_privacy.core.errors import StorageError
from fedre_privacy.core.files import tensor_sha256
from fedre_privacy.data import mapped
from fedre_privacy.data.base import datasets
from fedre_privacy.data.mapped import copy_images, empty_images


@pytest.fixture
def crowded(monkeypatch, tmp_path):
    """A machine on which every image is one too many."""
    monkeypatch.setattr(mapped, "available_bytes", lambda: 0)
    monkeypatch.setattr(mapped.tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def mapped_files() -> list[str]:
    """Files without a name that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "/scratch/" in line and line.endswith("(deleted)")]


def write_images(folder: Path, *, grey: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(6):
        own = folder / ("ant", "bee")[number % 2]
        own.mkdir(parents=True, exist_ok=True)
        side = (8, 8) if number < grey else (8, 8, 3)
        Image.fromarray(rng.integers(0, 256, side, dtype=np.uint8)).save(own / f"{number}.png")


@pytest.mark.parametrize("grey", [0, 2, 6])
def test_a_folder_has_the_same_images_in_a_mapped_file(tmp_path, crowded, monkeypatch, grey):
    write_images(tmp_path / "images", grey=grey)
    data = datasets.get("imagefolder")(path=str(tmp_path / "images")).load()
    assert list(crowded.iterdir()) == [] and mapped_files()
    monkeypatch.setattr(mapped, "available_bytes", lambda: 1 << 40)
    plain = datasets.get("imagefolder")(path=str(tmp_path / "images")).load()
    assert torch.equal(data.images, plain.images) and data.sha256 == plain.sha256


def test_few_images_are_in_memory_and_many_are_not(crowded, monkeypatch):
    before = len(mapped_files())
    monkeypatch.setattr(mapped, "available_bytes", lambda: 4 * 640)
    small = empty_images(10, (1, 8, 8))
    assert len(mapped_files()) == before
    large = empty_images(11, (1, 8, 8))
    assert len(mapped_files()) == before + 1
    monkeypatch.setattr(mapped, "available_bytes", lambda: None)
    assert len(empty_images(10_000, (1, 8, 8))) == 10_000 and len(mapped_files()) == before + 1
    assert small.shape == (10, 1, 8, 8) and large.shape == (11, 1, 8, 8)
    del large
    assert len(mapped_files()) == before  # the file went with the images


def test_a_copy_has_room_of_its_own(crowded):
    images = torch.arange(128, dtype=torch.uint8).reshape(2, 1, 8, 8)
    copy = copy_images(images)
    assert torch.equal(copy, images)
    copy[0] = 0
    assert images[0].any()
    assert torch.equal(copy_images(images, channels=3), images.expand(-1, 3, -1, -1))


def test_a_full_disk_is_said_before_an_image_is_read(crowded, monkeypatch):
    def full(*given: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(StorageError, match="has no room for them") as caught:
        empty_images(1000, (3, 8, 8))
    assert "TMPDIR=DIR" in str(caught.value)


def test_a_hash_is_that_of_the_bytes():
    import hashlib

    for tensor in (
        torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4).transpose(0, 2),
        torch.zeros(0, 3, dtype=torch.int64),
        torch.tensor(1.5),
        torch.tensor([True, False]),
    ):
        wanted = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        assert tensor_sha256(tensor) == wanted
