"""Gaussian differential privacy: what mu says in epsilon and delta, and back.

Reference: Dong, Roth, Su, Gaussian differential privacy, JRSS-B 2022, Corollaries 2.13 and 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy  # type: ignore[import-untyped]
from scipy.special import log_ndtr  # type: ignore[import-untyped]


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta at which mu-Gaussian DP implies (epsilon, delta)-DP.

    delta = Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu).

    Args:
        mu: > 0; T uses of a Gaussian mechanism with noise multiplier z have mu = sqrt(T) / z.
        epsilon: >= 0.
    """
    first: float = log_ndtr(mu / 2 - epsilon / mu)
    second: float = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return max(0.0, -math.exp(first) * math.expm1(min(second - first, 0.0)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which mu-Gaussian DP implies (epsilon, delta)-DP.

    Args:
        mu: >= 0. delta: in (0, 1).
    """
    if mu == 0 or gdp_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gdp_delta(mu, high) > delta:
        high *= 2
    return _edge(lambda epsilon: gdp_delta(mu, epsilon), delta, inside=high, outside=0.0)


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose Gaussian DP implies (epsilon, delta)-DP.

    Args:
        epsilon: > 0. delta: in (0, 1).
    """
    high = 1.0
    while gdp_delta(high, epsilon) <= delta:
        high *= 2
    low = high
    while gdp_delta(low, epsilon) > delta:
        low /= 2
    return _edge(lambda mu: gdp_delta(mu, epsilon), delta, inside=low, outside=high)


def _edge(spent: Callable[[float], float], delta: float, *, inside: float, outside: float) -> float:
    """Return the root of `spent` = `delta` between two numbers, on the side of `inside`.

    Brent's method ends a few floats beside the root, on either side; a guarantee must not be on
    the wrong one.
    """
    found: float = scipy.optimize.brentq(
        lambda x: spent(x) - delta, inside, outside, xtol=1e-300, rtol=1e-15
    )
    while spent(found) > delta:
        found = math.nextafter(found, inside)
    return found
