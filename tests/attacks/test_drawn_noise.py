"""Noise that clients draw, as an attacker who knows it weighs directions by it."""

import pytest
import torch
from sklearn.covariance import ledoit_wolf
from torch import nn

from fedre_privacy.attacks.common.drawn_noise import (
    MOST_VALUES,
    noise_weights,
    shrunk_covariance,
    weighted_extractors,
    weighted_rows,
    weights_by_owner,
)

DIM = 48


class Drawing(nn.Module):
    """Flattened images times a matrix; a draw adds one of several vectors, or what `noise` says."""

    def __init__(self, dim: int = DIM, noise=None) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(64, dim, generator=draws) / 8)
        self.vectors = 30 * torch.randn(6, dim, generator=draws)
        self.vectors -= self.vectors.mean(0)
        self.noise = noise

    def forward(self, images):
        return images.flatten(1) @ self.matrix

    def sample(self, images, generator):
        made = self(images)
        if self.noise is not None:
            return made + self.noise(images, made, generator)
        chosen = torch.randint(len(self.vectors), (len(made),), generator=generator)
        return made + self.vectors[chosen]


@pytest.fixture
def images():
    return torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def weights_of(module, images):
    return noise_weights((1, 0), module, images)


def test_few_directions_of_noise_count_for_nothing_and_the_others_stay(images):
    module = Drawing()
    weights = weights_of(module, images)
    assert torch.equal(weights, weights_of(module, images))
    assert torch.allclose(weights, weights.T, atol=1e-6)
    noise, signal = module.vectors, module(images) - module(images).mean(0)
    assert (noise @ weights).norm() < 0.02 * noise.norm()
    clear = signal - signal @ torch.linalg.pinv(noise) @ noise
    assert 0.9 < (clear @ weights).norm() / clear.norm() <= 1.0001


def test_one_vector_there_and_back_counts_for_nothing(images):
    def noise(_, made, generator):
        signs = torch.arange(len(made)) % 2 * 2 - 1
        return signs[:, None] * torch.arange(1.0, 1 + made.shape[1])

    module = Drawing(noise=noise)
    weights, along = weights_of(module, images), torch.arange(1.0, 1 + DIM)
    assert weights.isfinite().all()
    assert (along @ weights).norm() < 1e-3 * along.norm()
    assert float(torch.linalg.eigvalsh(weights)[1]) > 0.99


def test_equal_noise_leaves_directions_equal(images):
    def noise(_, made, generator):
        return 2 * torch.randn(made.shape, generator=generator)

    values = torch.linalg.eigvalsh(weights_of(Drawing(noise=noise), images))
    assert 0.9 < float(values.min()) and float(values.max()) < 1.0001


@pytest.mark.parametrize("count", [2, 8, 40, 500])
def test_the_covariance_is_that_of_ledoit_and_wolf(count):
    draws = torch.Generator().manual_seed(count)
    rows = torch.randn(count, 20, generator=draws, dtype=torch.float64)
    rows = rows * torch.arange(1, 21) + 3
    theirs = torch.from_numpy(ledoit_wolf(rows.numpy())[0])
    assert torch.allclose(shrunk_covariance(rows), theirs, atol=1e-9)


@pytest.mark.parametrize(
    "module",
    [
        nn.Flatten(),
        Drawing(noise=lambda images, made, _: torch.zeros_like(made)),
        Drawing(noise=lambda _, made, rng: made[torch.randperm(len(made), generator=rng)] - made),
        Drawing(noise=lambda images, made, _: torch.full_like(made, torch.nan)),
        Drawing(noise=lambda _, made, rng: torch.ones_like(made)),
        Drawing(dim=MOST_VALUES + 1),
    ],
    ids=["no draws", "of nothing", "mixes with others", "not a number", "always the same", "wide"],
)
def test_nothing_is_weighed_where_there_is_no_noise_to_weigh(images, module):
    assert weights_of(module, images) is None


def test_rows_and_extractors_are_weighed_alike(images):
    noisy, plain = Drawing(), nn.Sequential(nn.Flatten(), nn.Linear(64, DIM))
    weights = weights_by_owner({(1, 0): noisy, (2, 0): plain}, images)
    assert list(weights) == [(1, 0)]
    made = weighted_extractors({(1, 0): noisy, (2, 0): plain}, weights)
    rows, owners = torch.cat([noisy(images[:2]), plain(images[2:3])]), [(1, 0), (1, 0), (2, 0)]
    found = weighted_rows(rows, owners, weights)
    assert torch.allclose(found[:2], made[1, 0](images[:2]), atol=1e-5)
    assert torch.equal(found[2:], made[2, 0](images[2:3])) and made[2, 0] is plain
    assert weighted_rows(rows, owners, {}) is rows
