"""Random changes of training images."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.protocols.blocks.augment import (
    ERASED_SHARE,
    PADDING,
    STEPS,
    augment_batch,
    crop,
    erase,
    flip,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(400, 3, 12, 10, generator=rng(9)) * 0.9 + 0.1  # no pixel is black


def test_half_of_the_images_are_mirrored(images: torch.Tensor) -> None:
    found = flip(images, rng())
    mirrored = (found == images.flip(3)).all((1, 2, 3))
    assert (mirrored | (found == images).all((1, 2, 3))).all()
    assert 160 < int(mirrored.sum()) < 240


def test_each_image_is_shifted_by_itself_and_black_comes_in(images: torch.Tensor) -> None:
    found = crop(images, rng())
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    seen = set()
    for own, big in zip(found, padded, strict=True):
        places = [
            (top, left)
            for top in range(2 * PADDING + 1)
            for left in range(2 * PADDING + 1)
            if torch.equal(own, big[:, top : top + 12, left : left + 10])
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) > 70  # of 81


def test_rectangles_of_half_of_the_images_become_their_mean_colour(images: torch.Tensor) -> None:
    found = erase(images, rng())
    changed = (found != images).any(1)
    touched = changed.any((1, 2))
    assert 160 < int(touched.sum()) < 240
    mean = images.mean((2, 3))
    for at in touched.nonzero().squeeze(1).tolist():
        rows, columns = changed[at].any(1).nonzero(), changed[at].any(0).nonzero()
        block = found[at, :, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        torch.testing.assert_close(block, mean[at][:, None, None].expand_as(block))
        share = block[0].numel() / 120
        assert ERASED_SHARE[0] / 2 < share < ERASED_SHARE[1] * 1.5  # rounded to whole pixels


@pytest.mark.parametrize("name", STEPS)
def test_the_stream_decides_and_nothing_leaves_the_range(name: str, images: torch.Tensor) -> None:
    first, again = augment_batch(name, images, rng(1)), augment_batch(name, images, rng(1))
    assert torch.equal(first, again) and first.shape == images.shape
    assert 0 <= float(first.min()) and float(first.max()) <= 1
    assert torch.equal(first, images) == (name == "none")
    assert torch.equal(first, augment_batch(name, images, rng(2))) == (name == "none")
