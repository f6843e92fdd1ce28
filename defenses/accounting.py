"""Adding up privacy: exact for Gaussian mechanisms without sampling, by Opacus with sampling.

Reference: Dong, Roth, Su, Gaussian differential privacy, JRSS-B 2022, Corollaries 2.13 and 3.3;
Mironov, Renyi differential privacy, CSF 2017; Gopi et al., Numerical composition of differential
privacy, NeurIPS 2021.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.special import log_ndtr  # type: ignore[import-untyped]

from fedre_privacy.core.errors import ConfigError

from .base import Release

ACCOUNTANTS = ("prv", "rdp")
PRV_UP_TO = 50.0
"""Epsilon of the RDP bound up to which the PRV accountant is asked; a guarantee says little there.
"""


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


def mu_of(releases: Iterable[Release]) -> float:
    """Return mu of several Gaussian mechanisms, none sampled: the root of the sum of squares."""
    return math.sqrt(sum(r.count / r.noise**2 for r in releases))


def epsilon_of(releases: tuple[Release, ...], delta: float, accountant: str = "prv") -> float:
    """Return an upper bound of epsilon at delta for Gaussian mechanisms used one after another.

    Without sampling it is exact (Gaussian DP); with it, it is the Opacus accountant's bound, and
    each record must enter by an independent coin (Poisson sampling).

    Args:
        accountant: ``prv`` (tight) or ``rdp``.
    """
    used = tuple(r for r in releases if r.count)
    if not used:
        return 0.0
    if all(r.rate >= 1 for r in used):
        return gdp_epsilon(mu_of(used), delta)
    return sampled_epsilon(used, delta, accountant)


@lru_cache(maxsize=256)
def sampled_epsilon(releases: tuple[Release, ...], delta: float, accountant: str = "prv") -> float:
    """Return the bound of an Opacus accountant; valid for Poisson sampling only.

    The PRV accountant's grid grows with epsilon, so from `PRV_UP_TO` on the RDP one answers.
    """
    from opacus.accountants import PRVAccountant, RDPAccountant

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        rdp = RDPAccountant()
        rdp.history = [(r.noise, r.rate, r.count) for r in releases]
        bound = float(rdp.get_epsilon(delta))
        if accountant == "rdp" or not bound <= PRV_UP_TO:
            return bound
        prv = PRVAccountant()
        prv.history = list(rdp.history)
        return min(bound, float(prv.get_epsilon(delta)))


def least_noise(within: Callable[[float], bool]) -> float:
    """Return the least noise multiplier that keeps within a budget, to 0.1 %.

    Raises:
        ConfigError: not even noise of 10,000 does.
    """
    low, high = 0.1, 10.0
    while not within(high):
        if high > 1e4:
            raise ConfigError(
                "No noise of at most 10,000 times the sensitivity keeps within that epsilon.",
                next_step="Give a larger epsilon or fewer rounds.",
            )
        low, high = high, high * 10
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if within(middle) else (middle, high)
    return high


def _edge(spent: Callable[[float], float], delta: float, *, inside: float, outside: float) -> float:
    """Return the root of `spent` = `delta` between two numbers, on the side of `inside`.

    Brent's method ends a few floats beside the root, on either side; a guarantee must not be on
    the wrong one.
    """
    found: float = brentq(lambda x: spent(x) - delta, inside, outside, xtol=1e-300, rtol=1e-15)
    while spent(found) > delta:
        found = math.nextafter(found, inside)
    return found
