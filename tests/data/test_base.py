"""The shared type, checks and conversions of data sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedre_privacy.core.config import build
from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingInputError
from fedre_privacy.data import ImageData, as_images, as_labels, datasets, keep_per_class, resize
from fedre_privacy.data.base import existing


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


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 8, 9), (5, 1, 8, 9)),
        ((5, 8, 9, 3), (5, 3, 8, 9)),
        ((5, 3, 8, 9), (5, 3, 8, 9)),
        ((5, 8, 9, 1), (5, 1, 8, 9)),
        ((5, 1, 8, 9), (5, 1, 8, 9)),
    ],
)
def test_as_images_orders_axes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    array = np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)
    found = as_images(array, "x")
    assert tuple(found.shape) == expected and found.dtype == torch.uint8
    last = array[2, 1, 2, -1] if shape[-1] in (1, 3) else array[(2, -1, 1, 2)[-len(shape) :]]
    if len(shape) == 3:
        last = array[2, 1, 2]
    assert int(found[2, -1, 1, 2]) == int(last)


def test_as_images_rounds_floats() -> None:
    array = np.array([0.0, 0.5, 1.0, 0.1], dtype=np.float32).reshape(1, 2, 2)
    assert as_images(array, "x").flatten().tolist() == [0, 128, 255, 26]
    assert as_images(array + 5e-7, "x").max() == 255


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((4, 3, 8, 3), "channels may be the second or the last axis"),
        ((4, 2, 8, 8), "no axis has 1 or 3 channels"),
        ((32, 32, 3), "it may be one colour image or several grey ones"),
        ((3, 32, 32), "it may be one colour image or several grey ones"),
        ((8, 8), "no axis has 1 or 3 channels"),
        ((0, 8, 8), "it holds no pixels"),
    ],
)
def test_as_images_refuses_shapes(shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(IncompatibleError) as caught:
        as_images(np.full(shape, 9, dtype=np.uint8), "x_train")
    assert f"x_train has shape {shape}" in str(caught.value) and why in str(caught.value)


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ([-1.0, 1.0], ["from -1 to 1", "looks like mean 0.5 / std 0.5", "x * 0.5 + 0.5"]),
        ([0.0, 255.0], ["from 0 to 255", "looks like 0-255 floats", "Divide by 255"]),
        ([-2.1, 2.6], ["from -2.1 to 2.6", "looks standardised", "x * std + mean"]),
        ([0.0, np.nan], ["not all are finite"]),
        ([0.0, np.inf], ["not all are finite"]),
    ],
)
def test_as_images_names_the_likely_normalisation(values: list[float], parts: list[str]) -> None:
    array = np.resize(np.array(values), (2, 4, 4))
    with pytest.raises(IncompatibleError) as caught:
        as_images(array, "x_train")
    for part in [*parts, "Needed: uint8 0..255, or floats in [0, 1]", "x_train"]:
        assert part in str(caught.value)


def test_as_images_refuses_other_types() -> None:
    grey = np.arange(64).reshape(1, 8, 8)
    with pytest.raises(IncompatibleError, match=r"holds int64 with values 0\.\.63.*(?s:.)*astype"):
        as_images(grey, "x")
    with pytest.raises(IncompatibleError, match="holds bool"):
        as_images(grey > 3, "x")
    with pytest.raises(IncompatibleError, match="floats cast to uint8"):
        as_images((grey > 3).astype(np.uint8), "x")


def test_as_labels() -> None:
    assert as_labels(np.array([[2], [0]], dtype=np.uint8), "y", count=2).tolist() == [2, 0]
    with pytest.raises(IncompatibleError, match=r"y is int64 of shape \(3,\).*shape \(2,\)"):
        as_labels(np.arange(3), "y", count=2)
    with pytest.raises(IncompatibleError, match="y is float64"):
        as_labels(np.zeros(2), "y", count=2)
    with pytest.raises(IncompatibleError, match="y holds the label -1"):
        as_labels(np.array([0, -1]), "y", count=2)


def test_existing_names_the_remedy() -> None:
    for path, said in ((None, "no path was given"), ("no-such-place", "nothing at no-such-place")):
        with pytest.raises(MissingInputError) as caught:
            existing(path, "npz", "a .npz file")
        for part in (said, "'npz' needs a .npz file", "--data-dir DIR", "--dataset digits",
                     "--dataset photos"):  # fmt: skip
            assert part in str(caught.value)


def test_registry() -> None:
    assert set(datasets.names()) >= {
        "cifar10", "cifar100", "digits", "fashion-mnist", "imagefolder", "npz", "photos",
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
