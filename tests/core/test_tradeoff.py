"""Curves: known values, and the two directions undo each other."""

import numpy as np
import pytest

from fedre_privacy.core.gdp import gdp_delta
from fedre_privacy.core.tradeoff import GaussianCurve, PairsCurve


def pairs_of(mu: float, count: int = 41) -> PairsCurve:
    return PairsCurve(tuple((float(e), gdp_delta(mu, e)) for e in np.linspace(0, 6, count)))


@pytest.mark.parametrize("kappa", [0.01, 0.1, 0.5, 0.9])
def test_pairs_of_a_gaussian_curve_are_nearly_that_curve_and_never_under_it(kappa):
    exact = GaussianCurve(1.0).most(kappa)
    assert exact <= pairs_of(1.0).most(kappa) <= exact + 2e-3
    assert pairs_of(1.0).cap == pytest.approx(GaussianCurve(1.0).cap, abs=1e-12)
    assert GaussianCurve(1.0).most(0.1) == pytest.approx(0.3891, abs=1e-4)


@pytest.mark.parametrize("curve", [GaussianCurve(0.7), pairs_of(0.7), PairsCurve(((2.0, 1e-5),))])
def test_least_undoes_most(curve):
    for kappa in (0.01, 0.2, 0.6):
        assert curve.least(curve.most(kappa)) == pytest.approx(kappa, abs=1e-9)
    assert curve.least(1e-9) == pytest.approx(0.0, abs=1e-6)


def test_a_pair_without_delta_is_the_pure_curve():
    pure = PairsCurve(((1.0, 0.0),))
    assert pure.most(0.1) == pytest.approx(0.2718, abs=1e-4)
    assert pure.most(0.9) == pytest.approx(1 - 0.1 / np.e)
    assert pure.most(1.0) == 1.0
