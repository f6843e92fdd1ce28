"""Correlated noise: its law, what a round costs, and that training uses it."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedre_privacy.core.artifacts import ModelState
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.defenses.accounting import epsilon_of
from fedre_privacy.defenses.base import FederationFacts
from fedre_privacy.defenses.dp_mf import DPMF, coefficients, correlated, sensitivity
from fedre_privacy.protocols.blocks.state import Samples


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def factor(bands, steps):
    """The lower triangular Toeplitz matrix C, written out."""
    found = np.zeros((steps, steps))
    for i in range(steps):
        for j in range(max(0, i - bands + 1), i + 1):
            k = i - j
            found[i, j] = math.comb(2 * k, k) / 4**k
    return found


def facts(rounds=5, counts=((60, 60), (10, 20)), **more):
    return FederationFacts(
        protocol="fedavg", kinds=(ModelState,), class_counts=counts,
        participations=(rounds,) * len(counts), rounds=rounds, training_only=True,
        **{"epochs": 2, "batch_size": 10, **more},
    )  # fmt: skip


def test_without_a_limit_the_factor_is_the_square_root_of_running_sums():
    c = factor(9, 9)
    assert np.allclose(c @ c, np.tril(np.ones((9, 9))))
    assert np.allclose(c[:, 0], coefficients(9))


@pytest.mark.parametrize(("bands", "waits", "steps"), [(1, 1, 4), (3, 3, 9), (4, 6, 15), (5, 5, 3)])
def test_the_sensitivity_is_the_largest_over_all_places_of_a_sample(bands, waits, steps):
    c = factor(bands, steps)
    uses = [np.arange(steps) % waits == first for first in range(min(waits, steps))]
    assert sensitivity(coefficients(bands), waits, steps) == pytest.approx(
        max(np.linalg.norm(c @ use) for use in uses)
    )


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_what_is_drawn_becomes_independent_under_the_factor(bands):
    steps, width = 12, 20000
    draw, generator = correlated(coefficients(bands)), rng()
    drawn = np.stack([draw([torch.zeros(width)], generator)[0].numpy() for _ in range(steps)])
    law = np.cov(factor(bands, steps) @ drawn)
    assert np.abs(law - np.eye(steps)).max() < 5 / math.sqrt(width)
    if bands == 1:
        again = rng()
        assert all(np.array_equal(row, torch.randn(width, generator=again)) for row in drawn)


def test_most_noise_of_a_round_is_taken_back():
    """Of the sum of all steps, at the same epsilon of the round."""
    steps = 12
    for bands, better in ((3, 1.5), (12, 3.0)):
        inverse = np.linalg.inv(factor(bands, steps))
        length = sensitivity(coefficients(bands), steps, steps)
        noise = length * np.linalg.norm(np.ones(steps) @ inverse)
        assert math.sqrt(steps) / noise > math.sqrt(better)


def test_batches_are_the_same_in_every_epoch_and_hold_a_sample_once():
    found = list(DPMF(clip=1.0, noise=1.0).batches(25, 8, 3, rng()))
    assert len(found) == 9 and all(len(batch) == 8 for batch in found)
    assert all(torch.equal(found[i], found[i + 3]) for i in range(6))
    assert len(torch.cat(found[:3]).unique()) == 24
    assert len(list(DPMF(clip=1.0, noise=1.0).batches(25, 8, 3, rng(), steps=4))) == 4


def test_epsilon_is_that_of_one_gaussian_mechanism_a_round():
    defense = DPMF(clip=1.0, noise=3.0)
    cost = defense.cost(facts())
    # 120 samples, batches of 10: 12 steps between two uses, 2 uses a round, 5 rounds
    squares = sum((math.comb(2 * k, k) / 4**k) ** 2 for k in range(12))
    mu = math.sqrt(5 * 2 * squares) / 3.0
    assert epsilon_of(cost.releases[0], 1e-5) == pytest.approx(gdp_epsilon(mu, 1e-5))
    assert cost.unit == "record" and not cost.replaces
    settled = DPMF(clip=1.0, epsilon=6.0).settled(facts())
    spent = [epsilon_of(own, 1e-5) for own in settled.cost(facts()).releases]
    assert max(spent) == pytest.approx(6.0, abs=1e-3)


def test_with_one_band_it_is_independent_noise_without_sampling():
    cost = DPMF(clip=1.0, noise=2.0, bands=1).cost(facts(rounds=3))
    assert epsilon_of(cost.releases[0], 1e-5) == pytest.approx(gdp_epsilon(math.sqrt(6) / 2, 1e-5))


def test_training_takes_clipped_sums_and_correlated_noise():
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    samples = Samples(torch.full((8, 1, 2, 2), 255, dtype=torch.uint8), torch.zeros(8).long())
    seen = []

    def loss(images, labels):
        seen.append(model.weight.detach().clone())
        return -model(images.flatten(1)).mean()

    defense = DPMF(clip=0.5, noise=3.0)
    defense.fit(
        [model], loss, samples, epochs=1, batch_size=2, lr=1.0, rng=rng(1), noise_rng=rng(2),
        who="client 0",
    )  # fmt: skip
    weights = torch.cat([*seen[-4:], model.weight.detach()])
    draw, generator = correlated(coefficients(4)), rng(2)
    for step in range(4):
        noise = draw([torch.zeros(1, 4)], generator)[0]
        # each of the two gradients has length 2 and is cut to 0.5
        expected = (2 * 0.5 * torch.full((1, 4), 0.5) - 3.0 * 0.5 * noise) / 2
        torch.testing.assert_close(weights[step + 1] - weights[step], expected[0])


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="needs clip"):
        DPMF(noise=1.0)
    with pytest.raises(ConfigError, match="one of noise"):
        DPMF(clip=1.0)
    (problem,) = DPMF(clip=1.0, noise=1.0, delta=0.1).check(facts())
    assert "delta" in problem
