"""Bounds among mechanisms with other noise: how often above the truth, and how much they show."""

import numpy as np
import pytest
from scipy.stats import norm

from fedre_privacy.auditing.noise_families import LEAST, MOST, ROUGHLY, NoiseFamily, _least
from fedre_privacy.auditing.step_audit import (
    all_guesses_bound,
    any_mechanism_bound,
    guesses,
    one_run_bound,
)
from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.core.tradeoff import GaussianCurve, PairsCurve
from fedre_privacy.defenses.base import Release
from fedre_privacy.eval.lower_bounds import accuracy_p, refutes_curve

DELTA = 1e-5
SAMPLED = NoiseFamily((Release(1.195, 0.1, 200),))
"""1,000 records, 200 steps at rate 0.1: epsilon 7.27."""


def gaussian(mu: float) -> NoiseFamily:
    return NoiseFamily((Release(1 / mu, 1.0, 1),))


def game(mu: float, slots: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """Right guesses of records whose scores are N(+-mu / 2, 1): all, of the surest, and of many."""
    signs = np.where(rng.random(slots) < 0.5, 1.0, -1.0)
    scores = signs * mu / 2 + rng.normal(size=slots)
    hits = scores * signs > 0
    surest = np.argsort(-np.abs(scores))[: guesses(slots)]
    return int(hits.sum()), int(hits[surest].sum()), len(surest)


def test_a_family_has_the_curves_and_epsilons_of_its_mechanisms():
    family = gaussian(1.5)
    assert family.curve() == GaussianCurve(1.5)
    assert family.epsilon(DELTA) == gdp_epsilon(1.5, DELTA)
    assert family.epsilon(DELTA, 3.0) == pytest.approx(gdp_epsilon(0.5, DELTA))
    pure = NoiseFamily((), pure=2.0)
    assert pure.epsilon(0.0, 4.0) == 0.5 and pure.curve(4.0).cap == pytest.approx(0.6225, abs=1e-4)
    caps = [SAMPLED.curve(factor).cap for factor in (0.8, 1.0, 1.5)]
    assert caps == sorted(caps, reverse=True)


@pytest.mark.parametrize("edge", [LEAST, -100, -9, -8, -1, 0, 1, 8, 9, 300, MOST])
def test_the_least_noise_that_is_refuted_is_found(edge):
    assert _least(lambda power: power >= edge) == edge
    roughly = _least(lambda power: power * ROUGHLY >= edge, rough=ROUGHLY)
    assert roughly is not None and 0 <= roughly * ROUGHLY - edge < ROUGHLY
    assert _least(lambda power: False) is None


@pytest.mark.parametrize("slots", [100, 1000])
@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_bounds_are_above_the_truth_as_seldom_as_stated(mu, slots):
    """A correct mechanism, 200 audits: at most one in twenty, with room for chance (3.4 % more)."""
    rng, family = np.random.default_rng(7), gaussian(mu)
    known: dict[tuple[int, ...], float] = {}
    above = {"all": 0, "surest": 0}
    for _ in range(200):
        right, sure, guessed = game(mu, slots, rng)
        for name, bound, given in (
            ("all", all_guesses_bound, (right,)), ("surest", one_run_bound, (guessed, sure)),
        ):  # fmt: skip
            if given not in known:
                known[given] = bound(family, slots, *given, DELTA, 0.05).epsilon
            above[name] += known[given] > family.epsilon(DELTA)
    assert above["all"] <= 16 and above["surest"] <= 2  # whose test allows any dependence


def test_records_that_depend_on_each_other_need_the_test_that_allows_it():
    """A mechanism that tells all or nothing, with one chance of 0.3 for all records."""
    curve = PairsCurve(((0.0, 0.3),))
    assert accuracy_p(1000, 1000, curve.cap) < 1e-6  # in three audits of ten, and it is correct
    assert not refutes_curve(1000, 1000, 1000, curve)
    assert refutes_curve(1000, 1000, 1000, PairsCurve(((0.0, 0.04),)))


@pytest.mark.parametrize(("sure", "shown", "before"), [(94, 3.19, 2.03), (92, 2.80, 1.81)])
def test_the_same_guesses_show_more_than_for_any_mechanism(sure, shown, before):
    """Right guesses of the 100 surest of 1,000 records, of 7.27 that are promised."""
    assert SAMPLED.epsilon(DELTA) == pytest.approx(7.27, abs=0.01)
    family = one_run_bound(SAMPLED, 1000, 100, sure, DELTA, 0.05)
    assert family.epsilon == pytest.approx(shown, abs=0.02) and family.ceiling > 5
    other = any_mechanism_bound(1000, 100, sure, DELTA, 0.05)
    assert other.epsilon == pytest.approx(before, abs=0.01)


def test_all_guesses_show_the_mu_of_their_share():
    family = gaussian(1.0)
    bound = all_guesses_bound(family, 1000, 750, DELTA, 0.05)
    mu = 2 * norm.ppf(0.7265)  # largest mean of 750 right of 1,000, one-sided, by hand
    assert bound.epsilon == pytest.approx(gdp_epsilon(mu, DELTA), rel=0.02)
    assert all_guesses_bound(family, 1000, 500, DELTA, 0.05).epsilon == 0.0
    assert bound.epsilon < bound.ceiling
