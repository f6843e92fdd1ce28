"""Adding up privacy: exact for Gaussian mechanisms without sampling, by Opacus with sampling.

Reference: `fedre_privacy.core.gdp`; Mironov, Renyi differential privacy, CSF 2017; Gopi et al.,
Numerical composition of differential privacy, NeurIPS 2021.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.gdp import gdp_epsilon

from .base import Release

ACCOUNTANTS = ("prv", "rdp")
PRV_UP_TO = 50.0
"""Epsilon of the RDP bound up to which the PRV accountant is asked; a guarantee says little there.
"""


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
