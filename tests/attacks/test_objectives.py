"""Distances and total variation against their formulas, element by element."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedre_privacy.attacks.common.objectives import OBJECTIVES, total_variation

REPS = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TARGET = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(name: str, r: list[float], t: list[float]) -> float:
    squares = sum(v * v for v in t)
    relative = sum((a - b) ** 2 for a, b in zip(r, t, strict=True)) / squares
    dot = sum(a * b for a, b in zip(r, t, strict=True))
    cosine = 1 - dot / math.sqrt(squares * sum(v * v for v in r))
    if name == "l2rel":
        return relative
    if name == "cosine":
        return cosine
    if name == "l2rel+cosine":
        return (relative + cosine) / 2
    scale = math.sqrt(squares / len(t))
    gaps = [abs(a - b) / scale for a, b in zip(r, t, strict=True)]
    return sum(g * g / 2 if g < 1 else g - 0.5 for g in gaps) / len(gaps)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_formula(name):
    found = OBJECTIVES[name](REPS, TARGET)
    assert found.shape == (5,)
    for value, r, t in zip(found.tolist(), REPS.tolist(), TARGET.tolist(), strict=True):
        assert value == pytest.approx(by_hand(name, r, t), rel=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_zero_at_the_target_and_not_elsewhere(name):
    objective = OBJECTIVES[name]
    assert torch.allclose(objective(TARGET, TARGET), torch.zeros(5).double(), atol=1e-9)
    assert bool((objective(REPS, TARGET) > 0.1).all())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("factor", [1e-2, 1e3])
def test_the_scale_of_the_extractor_does_not_matter(name, factor):
    objective = OBJECTIVES[name]
    found = objective(REPS * factor, TARGET * factor)
    assert torch.allclose(found, objective(REPS, TARGET), rtol=1e-2)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_target_of_zeros_gives_a_number(name):
    assert bool(OBJECTIVES[name](REPS, torch.zeros_like(TARGET)).isfinite().all())


@given(st.integers(1, 3), st.integers(2, 6), st.integers(2, 6), st.integers(0, 2**31))
def test_total_variation_is_the_explicit_sum(channels, height, width, seed):
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand(2, channels, height, width, dtype=torch.float64, generator=rng)
    for image, found in zip(images.tolist(), total_variation(images).tolist(), strict=True):
        dx = [
            abs(row[i + 1] - row[i]) for plane in image for row in plane for i in range(width - 1)
        ]
        dy = [
            abs(plane[j + 1][i] - plane[j][i])
            for plane in image
            for j in range(height - 1)
            for i in range(width)
        ]
        assert found == pytest.approx(sum(dx) / len(dx) + sum(dy) / len(dy))


def test_total_variation_of_known_pictures():
    flat, stripes = torch.full((1, 3, 8, 8), 0.3), torch.zeros(1, 3, 8, 8)
    stripes[..., ::2] = 1
    assert total_variation(flat).tolist() == [0] and total_variation(stripes).tolist() == [1]
