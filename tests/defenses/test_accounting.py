"""Adding up privacy: published values, an independent formula, and other accountants."""

import math

import pytest
from scipy.stats import norm

from fedre_privacy.core.gdp import gdp_delta, gdp_epsilon, gdp_mu
from fedre_privacy.defenses.accounting import (
    epsilon_of,
    mu_of,
    sampled_epsilon,
)
from fedre_privacy.defenses.base import Release

DELTA = 1e-5


@pytest.mark.parametrize(
    ("noise", "count", "epsilon"),
    [(4, 100, "13.21"), (10, 100, "4.38"), (20, 100, "1.99"), (50, 100, "0.73"), (1, 1, "4.38")],
)
def test_known_values_to_the_printed_digits(noise, count, epsilon):
    assert f"{epsilon_of((Release(noise, 1.0, count),), DELTA):.2f}" == epsilon


def test_delta_is_the_formula():
    for mu in (0.05, 0.5, 1, 3, 8):
        for epsilon in (0.0, 0.1, 1.0, 5.0, 20.0):
            plain = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
                -mu / 2 - epsilon / mu
            )
            assert gdp_delta(mu, epsilon) == pytest.approx(max(plain, 0), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_there_and_back(delta):
    for epsilon in (0.01, 0.5, 1, 8, 100, 5000):
        mu = gdp_mu(epsilon, delta)
        assert gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)
        assert gdp_delta(mu, epsilon) <= delta  # the safe side
        assert gdp_delta(mu * 1.0001, epsilon) > delta


def test_far_tails_are_neither_lost_nor_overflow():
    # exp(epsilon) alone would overflow, Phi alone would be 0
    assert 5000 < gdp_epsilon(100.0, DELTA) < 5500
    assert gdp_epsilon(1e-4, DELTA) < 1e-3
    assert gdp_epsilon(0.0, DELTA) == 0


def test_gaussian_privacy_has_its_known_values():
    assert gdp_epsilon(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert gdp_epsilon(1.0, 1e-3) == pytest.approx(3.1387, abs=1e-4)
    assert gdp_delta(1.0, 1.0) == pytest.approx(0.1269, abs=1e-4)
    assert gdp_delta(1.0, 0.0) == pytest.approx(0.3829, abs=1e-4)


def test_more_releases_cost_more_and_more_noise_costs_less():
    spent = [epsilon_of((Release(5.0, 1.0, count),), DELTA) for count in (1, 10, 100)]
    assert spent == sorted(spent) and spent[0] < spent[-1] / 3
    assert epsilon_of((Release(6.0, 1.0, 10),), DELTA) < spent[1]
    assert epsilon_of((Release(5.0, 1.0, 0),), DELTA) == 0


def test_releases_of_several_kinds_add_up_in_squares():
    both = (Release(3.0, 1.0, 4), Release(6.0, 1.0, 16))
    assert mu_of(both) == pytest.approx(math.sqrt(4 / 9 + 16 / 36))
    assert epsilon_of(both, DELTA) == pytest.approx(gdp_epsilon(mu_of(both), DELTA))


@pytest.mark.parametrize(("noise", "count"), [(4.0, 100), (10.0, 100), (2.0, 10)])
def test_the_accountants_bound_the_exact_value_closely(noise, count):
    release = (Release(noise, 1.0, count),)
    exact = epsilon_of(release, DELTA)
    prv, rdp = (sampled_epsilon(release, DELTA, kind) for kind in ("prv", "rdp"))
    assert exact <= prv + 1e-6 < rdp + 1e-6
    assert prv - exact < 0.02 and rdp < 1.15 * exact


def test_the_accountants_print_the_known_values():
    release = (Release(4.0, 1.0, 100),)
    assert f"{sampled_epsilon(release, DELTA, 'rdp'):.2f}" == "14.13"
    assert f"{sampled_epsilon(release, DELTA, 'prv'):.2f}" == "13.22"


def test_sampling_helps_and_mixes_with_what_is_not_sampled():
    sampled = Release(1.0, 0.1, 50)
    alone = epsilon_of((sampled,), DELTA)
    assert alone < epsilon_of((Release(1.0, 1.0, 50),), DELTA) / 4
    upload = Release(5.0, 1.0, 5)
    both = epsilon_of((sampled, upload), DELTA)
    assert max(alone, epsilon_of((upload,), DELTA)) < both
    assert both < alone + epsilon_of((upload,), DELTA)


def test_hardly_any_noise_is_answered_at_once_by_the_bound_that_can():
    release = (Release(0.2, 0.5, 2000),)
    assert sampled_epsilon(release, DELTA, "prv") == sampled_epsilon(release, DELTA, "rdp") > 1000
