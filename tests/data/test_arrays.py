"""Arrays and tensors of images and labels, in whatever layout, type and range people hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.data.arrays import USUAL, absent_classes, as_labels, class_numbers, read_pixels


def as_images(given: Any, what: str) -> Tensor:
    """As a data set reads an array."""
    return read_pixels(given, what, channels=USUAL).bytes()


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
        ([0.0, 1 / 255], ["divided by 255 twice", "Multiply by 255"]),
        ([-0.02, 1.04], ["resizing that overshoots", "Clip to [0, 1]"]),
        ([0.0, 4095.0], ["more than 8 bits"]),
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
    with pytest.raises(IncompatibleError, match="holds uint16(?s:.)*Divide them by the largest"):
        as_images((grey * 900).astype(np.uint16), "x")
    with pytest.raises(IncompatibleError, match="holds complex64"):
        as_images(grey.astype(np.complex64), "x")
    with pytest.raises(IncompatibleError, match="x is no array of images"):
        as_images([grey, grey[0]], "x")
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
    with pytest.raises(IncompatibleError, match="one-hot(?s:.)*argmax"):
        as_labels(np.eye(4), "y", count=4)


IMAGES = torch.rand(5, 3, 8, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "given",
    [
        IMAGES,
        IMAGES.double(),
        IMAGES.numpy().astype(">f4"),
        IMAGES.numpy().transpose(0, 2, 3, 1),
        list(IMAGES.numpy()),
        IMAGES.clone().requires_grad_(),
    ],
    ids=["float32", "float64", "big-endian", "channels last", "list", "with a graph"],
)
def test_floats_come_out_as_they_were_put_in(given: Any) -> None:
    found = read_pixels(given, "x")
    assert torch.equal(found.floats(), IMAGES) and found.notes == ()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(kind: torch.dtype) -> None:
    halves = IMAGES.to(kind)
    assert torch.equal(read_pixels(halves, "x").floats(), halves.float())
    levels = read_pixels(halves, "x").bytes().float() / 255
    assert float((levels - IMAGES).abs().max()) < 0.006


def test_bytes_and_truth_values() -> None:
    levels = (IMAGES * 255).round().to(torch.uint8)
    assert torch.equal(read_pixels(levels, "x").floats(), levels.float() / 255)
    assert torch.equal(read_pixels(IMAGES > 0.5, "x").bytes(), (IMAGES > 0.5) * torch.tensor(255))
    for few in ((IMAGES > 0.5).to(torch.uint8), torch.zeros(2, 3, 8, 9, dtype=torch.uint8)):
        with pytest.raises(IncompatibleError, match="uint8 with values 0..*almost black"):
            read_pixels(few, "x")


def test_a_tensor_with_channels_last_is_turned_with_a_note() -> None:
    for axes, channels in (
        (IMAGES, 3),
        (torch.rand(5, 5, 16, 16), 5),
        (torch.rand(4, 64, 1, 1), 64),
    ):
        assert read_pixels(axes, "x").values.shape[1] == channels
    turned = read_pixels(IMAGES.permute(0, 2, 3, 1), "truth")
    assert torch.equal(turned.floats(), IMAGES)
    assert "truth (5, 8, 9, 3) was read with channels last" in turned.notes[0]
    many = read_pixels(torch.rand(4, 16, 16, 5), "x")
    assert many.values.shape == (4, 5, 16, 16) and many.notes


def test_alpha_in_an_array_is_refused_by_data_sets() -> None:
    with pytest.raises(IncompatibleError, match="fourth channel is alpha"):
        as_images(np.full((5, 8, 9, 4), 200, np.uint8), "x")


def test_a_known_shape_settles_what_is_ambiguous() -> None:
    both = torch.rand(4, 3, 8, 3)
    with pytest.raises(IncompatibleError, match="second or the last(?s:.)*image_shape"):
        read_pixels(both, "x", option="image_shape=(C, H, W)")
    assert torch.equal(read_pixels(both, "x", shape=(3, 8, 3)).floats(), both)
    assert torch.equal(read_pixels(both, "x", shape=(3, 3, 8)).floats(), both.permute(0, 3, 1, 2))
    assert read_pixels(both[:, 0], "x", shape=(1, 8, 3)).values.shape == (4, 1, 8, 3)
    with pytest.raises(IncompatibleError, match=r"images are .*; needed is \(n, 3, 5, 5\)"):
        read_pixels(both, "x", shape=(3, 5, 5))
    with pytest.raises(IncompatibleError, match=r"it is one image(?s:.)*Give x\[None\]"):
        read_pixels(both[0], "x", shape=(3, 8, 3))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("my_photographs", r"x is a path(?s:.)*load_images\(path, size\)"),
        (IMAGES.to_sparse(), "x is no array of images"),
        (IMAGES.to("meta"), "x is no array of images"),
        (IMAGES[0], r"one colour image or several grey ones(?s:.)*give x\[None\]"),
        (IMAGES.flatten(1), r"shape \(5, 216\)(?s:.)*Reshape x"),
        (IMAGES[:0], "it holds no pixels"),
        ({"images": IMAGES}, "no axis has"),
    ],
)
def test_what_is_no_array_of_images_is_refused(given: Any, said: str) -> None:
    with pytest.raises(IncompatibleError, match=said):
        read_pixels(given, "x")


def test_labels_that_are_ids_become_classes() -> None:
    for ids in ([0, 40_000, 80_000], [7, 5_000_000, 10_000_000]):
        labels, names, notes = class_numbers(torch.tensor([*ids, ids[1]]))
        assert labels.tolist() == [0, 1, 2, 1] and names == tuple(map(str, ids))
        assert f"3 classes: the labels are ids up to {ids[2]}" in notes[0]


@pytest.mark.parametrize("labels", [[0, 9, 3], [999, 0], list(range(0, 5000, 5))])
def test_labels_that_are_classes_stay(labels: list[int]) -> None:
    kept, names, notes = class_numbers(torch.tensor(labels))
    assert kept.tolist() == labels and len(names) == max(labels) + 1 and notes == ()
    missing = len(names) - len(labels)
    assert absent_classes(kept, names)[0].startswith(f"{missing} of {len(names)} classes have no")
