"""The shared type, checks and conversions of data sets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedre_privacy.core.config import build
from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingInputError
from fedre_privacy.data import ImageData, datasets, keep_per_class, resize
from fedre_privacy.data.base import existing_path


def make(n: int = 6, num_train: int = 4) -> ImageData:
    images = torch.arange(n * 12, dtype=torch.uint8).reshape(n, 3, 2, 2)
    return ImageData("toy", images, torch.arange(n) % 2, ("a", "b"), num_train)


def test_image_data_facts() -> None:
    data = make()
    assert data.image_shape == (3, 2, 2) and data.num_classes == 2 and len(data) == 6
    picked = data.floats(torch.tensor([1, 0]))
    assert picked.dtype == torch.float32
    assert torch.equal(picked * 255, data.images[[1, 0]].float())
    assert repr(data) == (
        "ImageData('toy': 6 images 3x2x2, 2 classes, 4 original training + 2 test)"
    )


def test_white_is_one_and_black_is_zero() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
    data = ImageData("toy", images, torch.zeros(2, dtype=torch.int64), ("a",), 2)
    assert data.floats(torch.arange(2)).flatten().tolist() == [0.0, 1.0]


def test_sha256_follows_images_and_labels() -> None:
    data = make()
    assert len(data.sha256) == 64 and data.sha256 == make().sha256
    changed = data.images.clone()
    changed[5, 2, 1, 1] += 1
    assert replace(data, images=changed).sha256 != data.sha256
    assert replace(data, labels=1 - data.labels).sha256 != data.sha256


def test_image_data_reports_every_problem() -> None:
    with pytest.raises(IncompatibleError) as caught:
        ImageData("toy", torch.zeros(2, 1, 4, 4), torch.tensor([0, 5]), ("a",), 9)
    assert len(caught.value.problems) == 3
    assert "torch.uint8 (N, C, H, W) is needed" in str(caught.value)
    assert "labels span 0..5; 0..0 is needed for 1 class names" in str(caught.value)
    assert "num_train is 9; 0..2 is needed" in str(caught.value)


def test_image_data_refuses_none_and_wrong_labels() -> None:
    empty = torch.empty(0, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(IncompatibleError, match="there are no images"):
        ImageData("toy", empty, torch.empty(0, dtype=torch.int64), ("a",), 0)
    with pytest.raises(IncompatibleError, match=r"torch.int64 \(6,\) is needed"):
        replace(make(), labels=torch.zeros(5, dtype=torch.int64))


def test_keep_per_class_takes_the_first_of_each_class_and_part() -> None:
    labels = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0, 1])
    images = torch.arange(9, dtype=torch.uint8).reshape(9, 1, 1, 1)
    data = ImageData("toy", images, labels, ("a", "b"), 6)
    kept = keep_per_class(data, 2)
    assert kept.images.flatten().tolist() == [0, 1, 2, 4, 6, 7, 8]
    assert kept.labels.tolist() == [1, 0, 1, 0, 1, 0, 1] and kept.num_train == 4
    assert keep_per_class(data, None) is data
    assert torch.equal(keep_per_class(data, 100).images, images)


def test_resize() -> None:
    ramp = torch.tensor([[[[0, 100], [100, 200]]]], dtype=torch.uint8)
    assert resize(ramp, 4)[0, 0].tolist() == [
        [0, 25, 75, 100],
        [25, 50, 100, 125],
        [75, 100, 150, 175],
        [100, 125, 175, 200],
    ]
    assert resize(ramp, 2) is ramp
    checker = (torch.arange(64).reshape(8, 8) % 2 * 255).to(torch.uint8)[None]
    assert 100 < resize(checker, 2).float().mean() < 155, "without antialiasing this would be 0"
    oblong = torch.zeros(1, 4, 8, dtype=torch.uint8)
    oblong[:, :, 2:6] = 200
    assert torch.equal(resize(oblong, 2), torch.full((1, 2, 2), 200, dtype=torch.uint8))


def test_existing_names_the_remedy() -> None:
    for path, said in ((None, "no path was given"), ("no-such-place", "nothing at no-such-place")):
        with pytest.raises(MissingInputError) as caught:
            existing_path(path, "npz", "a .npz file")
        for part in (said, "'npz' needs a .npz file", "--data-dir DIR", "--dataset digits",
                     "--dataset photos"):  # fmt: skip
            assert part in str(caught.value)


def test_registry() -> None:
    assert set(datasets.names()) >= {
        "cifar10", "cifar100", "digits", "fashion-mnist", "imagefolder", "mnist", "npz", "photos",
        "tinyimagenet",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="Unknown data set 'digts'. Did you mean 'digits'"):
        datasets.get("digts")


@pytest.mark.parametrize("name", ["digits", "photos", "npz", "imagefolder", "tinyimagenet"])
def test_per_class_is_a_checked_setting_of_all(name: str) -> None:
    problems: list[str] = []
    assert build(datasets.get(name), {"per_class": 0}, at="data", problems=problems) is None
    assert "'data.per_class' is 0; it must be >= 1 images" in problems[0]
    assert build(datasets.get(name), {"per_class": 3}, at="data", problems=[]) is not None
