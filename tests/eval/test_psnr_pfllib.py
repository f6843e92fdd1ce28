"""The library's PSNR: what it gives to answers that know nothing, and to the truth."""

import math

import pytest
import torch

from fedre_privacy.eval.metrics import DEFAULT_METRICS, metrics
from fedre_privacy.eval.metrics.psnr_pfllib import published_floors

CIFAR100_MEAN = torch.tensor([0.507, 0.487, 0.441]).reshape(3, 1, 1)
CIFAR100_STD = torch.tensor([0.267, 0.256, 0.276]).reshape(3, 1, 1)


def two_valued(count: int, side: int = 32) -> torch.Tensor:
    """Images that have CIFAR-100's channel means and deviations exactly."""
    signs = torch.ones(count, 3, side, side)
    signs[..., ::2] = -1
    return CIFAR100_MEAN + CIFAR100_STD * signs


def test_it_is_off_unless_asked_for():
    assert "psnr_pfllib" not in DEFAULT_METRICS and "psnr_pfllib" in metrics.names()


def test_floors_of_images_with_the_moments_of_cifar100():
    floors = published_floors(two_valued(8))
    assert floors["untrained"] == pytest.approx(6.80, abs=0.03)
    assert floors["half"] == pytest.approx(7.11, abs=0.03)
    assert floors["zero"] == pytest.approx(10.15, abs=0.03)


def test_the_original_itself_is_far_from_perfect():
    dark = torch.full((2, 3, 16, 16), 0.25)  # -0.5 for the loader; the sigmoid ends at 0
    score = metrics.get("psnr_pfllib")()
    assert torch.allclose(score(dark, dark), torch.full((2,), 10 * math.log10(3 / 0.25)).double())
    bright = torch.full((2, 3, 16, 16), 0.75)
    assert float(score(bright, bright).min()) == 100
    assert published_floors(torch.cat([dark, bright]))["original"] > 50


def test_a_constant_is_scored_by_hand():
    score = metrics.get("psnr_pfllib")()
    found = score(torch.full((1, 1, 4, 4), 0.5), torch.full((1, 1, 4, 4), 1.0))
    assert float(found) == pytest.approx(10 * math.log10(3))
