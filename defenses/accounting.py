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
from fedre_privacy.core.gdp import gdp_delta, gdp_epsilon, gdp_mu
from fedre_privacy.core.tradeoff import GaussianCurve, PairsCurve, TradeoffCurve

from .base import Release

ACCOUNTANTS = ("prv", "rdp")
PRV_UP_TO = 50.0
"""Epsilon of the RDP bound up to which the PRV accountant is asked; a guarantee says little there.
"""

EPSILONS = np.concatenate([np.linspace(0, 4, 81), np.linspace(4.25, PRV_UP_TO, 184)])
"""At which a curve is worked out. Between them it is bounded by its neighbours."""
DELTAS = tuple(float(delta) for delta in np.logspace(-8, -0.1, 40))
OFF, TIGHT = 0.01, 1e-8
"""Errors of the PRV accountant's mesh: of epsilon, and of delta."""


def mu_of(releases: Iterable[Release]) -> float:
    """Return mu of several Gaussian mechanisms, none sampled: the root of the sum of squares."""
    return math.sqrt(sum(r.count / r.noise**2 for r in releases))


@lru_cache(maxsize=64)
def multiplier_of(epsilon: float, delta: float, count: int) -> float:
    """The noise multiplier of `count` Gaussian mechanisms that spend epsilon at delta together."""
    return math.sqrt(count) / gdp_mu(epsilon, delta)


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


def curve_of(
    releases: tuple[Release, ...], pure: float = 0.0, accountant: str = "prv"
) -> TradeoffCurve:
    """Return the trade-off curve that mechanisms used one after another promise together.

    Args:
        pure: epsilon of mechanisms with delta 0, used beside the Gaussian ones.
        accountant: of sampled releases, ``prv`` or ``rdp``.
    """
    used = tuple(r for r in releases if r.count)
    if not used:
        return PairsCurve(((pure, 0.0),))
    if any(r.rate < 1 for r in used):
        pairs = sampled_pairs(used, accountant)
    elif pure:
        mu = mu_of(used)
        pairs = tuple((float(e), gdp_delta(mu, float(e))) for e in EPSILONS)
    else:
        return GaussianCurve(mu_of(used))
    return PairsCurve(tuple((epsilon + pure, delta) for epsilon, delta in pairs))


@lru_cache(maxsize=1024)
def sampled_pairs(
    releases: tuple[Release, ...], accountant: str = "prv"
) -> tuple[tuple[float, float], ...]:
    """Return (epsilon, delta) pairs of an Opacus accountant, upper bounds; as `sampled_epsilon`."""
    from opacus.accountants import PRVAccountant, RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        orders = RDPAccountant.DEFAULT_ALPHAS
        spent = sum(
            compute_rdp(q=r.rate, noise_multiplier=r.noise, steps=r.count, orders=orders)
            for r in releases
        )
        loose = tuple(
            (float(get_privacy_spent(orders=orders, rdp=spent, delta=delta)[0]), delta)
            for delta in DELTAS
        )
        if accountant == "rdp" or not loose[0][0] <= PRV_UP_TO:
            return loose
        prv = PRVAccountant()
        prv.history = [(r.noise, r.rate, r.count) for r in releases]
        # the mesh moves epsilon by at most OFF, and what lies beyond it weighs at most TIGHT
        found = prv._get_dprv(eps_error=OFF, delta_error=TIGHT)
    losses = np.asarray(found.domain.ts, float)
    chance = np.asarray(found.pmf, float)[losses >= -OFF]
    losses = losses[losses >= -OFF]
    above = [np.append(np.cumsum(x[::-1])[::-1], 0) for x in (chance, chance * np.exp(-losses))]
    first = np.searchsorted(losses, EPSILONS - OFF)
    deltas = above[0][first] - np.exp(EPSILONS - OFF) * above[1][first] + TIGHT
    return tuple(zip(EPSILONS.tolist(), deltas.clip(0, 1).tolist(), strict=True))


@lru_cache(maxsize=1024)
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
