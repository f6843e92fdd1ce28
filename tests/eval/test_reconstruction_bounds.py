"""Bounds that no attack can exceed: known values, and simulations that stay under them."""

import numpy as np
import pytest
from scipy.stats import chi2

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.gdp import gdp_mu
from fedre_privacy.core.tradeoff import LINE_UP, VACUOUS, GaussianCurve, PairsCurve
from fedre_privacy.eval.reconstruction_bounds import (
    gamma_laplace,
    gamma_sampled,
    no_prior_chance,
    no_prior_psnr,
)

KAPPAS = (1e-3, 0.01, 0.1)


@pytest.mark.parametrize(
    ("mu", "gammas"),
    [(0.5016, (0.0048, 0.0340, 0.2177)), (1.0, (0.0183, 0.0924, 0.3891)),
     (1.666, (0.0772, 0.2545, 0.6497)), (4.0, (0.8185, 0.9529, 0.9967))],
)  # fmt: skip
def test_the_gaussian_bound_has_its_known_values(mu, gammas):
    assert [GaussianCurve(mu).most(k) for k in KAPPAS] == pytest.approx(gammas, abs=1e-4)
    assert all(GaussianCurve(mu).most(k) >= k for k in KAPPAS)
    assert GaussianCurve(mu).most(1.0) == 1


@pytest.mark.parametrize(
    ("epsilon", "gamma"), [(1, 0.014), (2, 0.019), (4, 0.031), (8, 0.068), (50, 0.84)]
)
def test_what_a_client_level_claim_says_of_a_line_up(epsilon, gamma):
    """Half of the accountant's mu: the release against one that does not depend on the target."""
    found = GaussianCurve(gdp_mu(epsilon, 1e-5) / 2).most(LINE_UP)
    assert found == pytest.approx(gamma, abs=5e-3 if epsilon == 50 else 5e-4)


def test_a_huge_epsilon_protects_nobody():
    assert GaussianCurve(gdp_mu(3e5, 1e-5) / 2).most(LINE_UP) >= VACUOUS


def test_laplace_is_tighter_than_pure_and_pure_than_approximate():
    values = [gamma_laplace(1.0, k) for k in (0.01, 0.1, 0.3)]
    assert values == pytest.approx([0.0272, 0.2718, 0.6934], abs=1e-4)
    for kappa in (0.001, 0.01, 0.1, 0.3, 0.7):
        laplace, pure = gamma_laplace(1.0, kappa), PairsCurve(((1.0, 0.0),)).most(kappa)
        assert kappa <= laplace <= pure + 1e-12
        assert pure <= np.exp(1.0) * kappa + 1e-12


def test_sampled_steps_agree_with_the_unsampled_law_and_certify_more():
    """At rate 1 the steps are Gaussian mechanisms of mu = sqrt(T) / z."""
    estimate, certified = gamma_sampled(2.0, 1.0, 4, 0.1, draws=20_000)
    assert estimate == pytest.approx(GaussianCurve(1.0).most(0.1), abs=0.015)
    assert estimate < certified < estimate + 0.03


@pytest.mark.slow
def test_sampled_steps_have_their_known_values():
    assert gamma_sampled(1.0, 0.1, 100, 0.1)[0] == pytest.approx(0.466, abs=0.01)
    assert gamma_sampled(1.0, 0.1, 100, 0.01)[0] == pytest.approx(0.143, abs=0.01)


def test_the_best_attack_on_orthogonal_candidates_stays_under_the_bound():
    rng = np.random.default_rng(0)
    mu, candidates, draws = 2.0, 100, 20_000
    seen = rng.normal(size=(draws, candidates))
    seen[:, 0] += mu  # the true one; unit vectors at distance mu from nothing
    found = float((seen.argmax(1) == 0).mean())
    assert found == pytest.approx(0.325, abs=0.012)
    assert found <= GaussianCurve(mu).most(1 / candidates)


def test_an_attacker_without_a_prior():
    norm = 576 / 4
    assert no_prior_psnr(0.02, norm, 576) == pytest.approx(12.40, abs=0.02)
    assert no_prior_psnr(0.1, norm, 576) == pytest.approx(-1.58, abs=0.02)
    assert no_prior_psnr(1.0, norm, 576, rounds=100) == pytest.approx(-1.58, abs=0.02)
    assert no_prior_psnr(0.01, 3072 / 4, 3072) == pytest.approx(11.15, abs=0.02)
    assert no_prior_chance(10**-1.322, 0.02, norm, 576) == pytest.approx(1e-3, rel=0.1)
    drawn = chi2(576).rvs(10_000, random_state=0) * 0.02**2 * norm / 576
    assert float((drawn <= 0.055).mean()) == pytest.approx(
        no_prior_chance(0.055, 0.02, norm, 576), abs=0.02
    )


@pytest.mark.parametrize("kappa", [0.0, -1.0, 1.5])
def test_a_kappa_out_of_range_is_refused(kappa):
    with pytest.raises(ConfigError, match="kappa is"):
        GaussianCurve(1.0).most(kappa)
