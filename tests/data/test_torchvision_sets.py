"""CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST without a network."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision

from fedre_privacy.core.errors import MissingInputError
from fedre_privacy.data import datasets
from fedre_privacy.data.torchvision_sets import (
    TIMEOUT_S,
    Cifar10,
    FashionMnist,
    Mnist,
    TorchvisionDataset,
)

NAMES = ("cifar10", "cifar100", "fashion-mnist", "mnist")
RANDOM = np.random.RandomState(0)


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(head + array.tobytes())


@pytest.mark.parametrize(
    ("made", "last"), [(FashionMnist, "Ankle boot"), (Mnist, "9 - nine")], ids=["fashion", "digits"]
)
def test_mnist_and_its_kin_from_their_files(
    made: type[TorchvisionDataset], last: str, tmp_path: Path
) -> None:
    raw = tmp_path / made.torchvision_name / "raw"
    raw.mkdir(parents=True)
    pixels = RANDOM.randint(0, 256, (9, 28, 28)).astype(np.uint8)
    labels = np.array([0, 9, 1, 2, 3, 0, 0, 9, 9], dtype=np.uint8)
    for part, rows in (("train", slice(0, 5)), ("t10k", slice(5, 9))):
        write_idx(raw / f"{part}-images-idx3-ubyte", pixels[rows])
        write_idx(raw / f"{part}-labels-idx1-ubyte", labels[rows])
    data = made(path=str(tmp_path), download=False).load()
    assert torch.equal(data.images, torch.from_numpy(pixels).unsqueeze(1))
    assert data.labels.tolist() == labels.tolist() and data.num_train == 5
    assert data.classes[9] == last and data.num_classes == 10
    few = made(path=str(tmp_path), download=False, per_class=1).load()
    assert few.labels.tolist() == [0, 9, 1, 2, 3, 0, 9]


class FakeCifar:
    """Stands in for torchvision's class: present only after a download, if at all."""

    on_download: Callable[[], None]
    present: set[str] = set()
    classes = ["cat", "dog"]

    def __init__(self, root: Path, *, train: bool, download: bool) -> None:
        if download:
            type(self).on_download()
            self.present.add(str(root))
        if str(root) not in self.present:
            raise RuntimeError("Dataset not found or corrupted.")
        count = 4 if train else 2
        self.data = np.full((count, 32, 32, 3), 200 if train else 100, dtype=np.uint8)
        self.targets = [index % 2 for index in range(count)]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeCifar]:
    source = type("Fake", (FakeCifar,), {"present": set(), "on_download": lambda: None})
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", source)
    return source


def test_present_files_need_no_download(fake: type[FakeCifar], tmp_path: Path) -> None:
    def refuse() -> None:
        raise AssertionError("tried to download")

    fake.on_download = refuse
    fake.present.add(str(tmp_path))
    data = Cifar10(path=str(tmp_path)).load()
    assert data.image_shape == (3, 32, 32) and data.num_train == 4
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1] and data.classes == ("cat", "dog")
    assert data.images[:, 0, 0, 0].tolist() == [200] * 4 + [100] * 2


def test_a_download_is_bounded_in_time(fake: type[FakeCifar], tmp_path: Path) -> None:
    seen: list[float | None] = []
    fake.on_download = lambda: seen.append(socket.getdefaulttimeout())
    before = socket.getdefaulttimeout()
    assert len(Cifar10(path=str(tmp_path)).load()) == 6
    assert seen == [TIMEOUT_S, TIMEOUT_S] and socket.getdefaulttimeout() == before


@pytest.mark.parametrize(
    "failure", [URLError("no route to host"), TimeoutError("timed out"), RuntimeError("bad MD5")]
)
def test_a_failed_download(fake: type[FakeCifar], tmp_path: Path, failure: Exception) -> None:
    def fail() -> None:
        raise failure

    fake.on_download = fail
    with pytest.raises(MissingInputError) as caught:
        Cifar10(path=str(tmp_path / "here")).load()
    for part in (str(tmp_path / "here"), "the download failed", str(failure),
                 "cifar-10-python.tar.gz", "--data-dir DIR", "FEDRE_DATA", "--dataset digits",
                 "--dataset photos"):  # fmt: skip
        assert part in str(caught.value)
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("name", NAMES)
def test_absent_and_download_off(name: str, tmp_path: Path) -> None:
    source = datasets.get(name)
    with pytest.raises(MissingInputError) as caught:
        source(path=str(tmp_path), download=False).load()  # type: ignore[call-arg]
    for part in (f"'{name}' is not (whole) in {tmp_path}", "download is off", "--data-dir DIR",
                 "--dataset digits"):  # fmt: skip
        assert part in str(caught.value)


def test_damaged_files_are_not_unpickled(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (folder / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(MissingInputError, match=r"not \(whole\)"):
        Cifar10(path=str(tmp_path), download=False).load()


def test_where_it_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRE_DATA", str(tmp_path / "from-env"))
    with pytest.raises(MissingInputError, match="from-env"):
        Cifar10(download=False).load()
    monkeypatch.delenv("FEDRE_DATA")
    with pytest.raises(MissingInputError) as caught:
        Cifar10(download=False).load()
    assert f"in {tmp_path / 'data'};" in str(caught.value)
