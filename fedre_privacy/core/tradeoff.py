"""Trade-off curves: what a guarantee lets any attack reach at a given chance of a wrong alarm.

A curve gives the largest true-positive rate of every test that tells two neighbouring inputs apart,
as a function of its false-positive rate. The same number bounds reconstruction: a guess that is
right with chance kappa without the release is right with at most `most(kappa)` with it.

References: Dong, Roth, Su, Gaussian differential privacy, JRSS-B 2022; Kairouz, Oh, Viswanath, The
composition theorem for differential privacy, ICML 2015 (regions of several pairs); Kaissis et al.,
Bounding data reconstruction attacks with the hypothesis testing interpretation, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]

from .errors import ConfigError

LINE_UP = 0.01
"""Kappa of a line-up of 100: the true image among 99 others, none likelier than another."""
VACUOUS = 0.9
"""From this bound at `LINE_UP` on nobody is protected."""


class TradeoffCurve(Protocol):
    """What every curve says."""

    @property
    def cap(self) -> float:
        """Largest chance with which any rule guesses a fair coin."""

    def most(self, kappa: float) -> float:
        """Largest true-positive rate at a false-positive rate of kappa, in (0, 1].

        Raises:
            ConfigError: kappa out of range.
        """

    def least(self, success: float) -> float:
        """Smallest false-positive rate at which a true-positive rate is allowed; undoes `most`."""


@dataclass(frozen=True)
class GaussianCurve:
    """Telling N(0, 1) from N(mu, 1); what Gaussian mechanisms without sampling have, exactly."""

    mu: float

    @property
    def cap(self) -> float:
        """Phi(mu / 2)."""
        return float(ndtr(self.mu / 2))

    def most(self, kappa: float) -> float:
        """Phi(Phi^-1(kappa) + mu)."""
        check_kappa(kappa)
        return float(ndtr(ndtri(kappa) + self.mu))

    def least(self, success: float) -> float:
        """Phi(Phi^-1(success) - mu)."""
        return float(ndtr(ndtri(success) - self.mu))


@dataclass(frozen=True)
class PairsCurve:
    """What several (epsilon, delta) guarantees of one mechanism leave open together.

    Args:
        pairs: (epsilon, delta), all of which hold; a pure guarantee is one with delta 0.
    """

    pairs: tuple[tuple[float, float], ...]

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        epsilons, deltas = np.array(self.pairs, float).T
        return epsilons, deltas

    @property
    def cap(self) -> float:
        """Least of (e^epsilon + delta) / (e^epsilon + 1)."""
        epsilons, deltas = self._arrays
        return float(((1 + deltas * np.exp(-epsilons)) / (1 + np.exp(-epsilons))).min())

    def most(self, kappa: float) -> float:
        """Least of e^epsilon kappa + delta and 1 - e^-epsilon (1 - kappa - delta), at most 1."""
        check_kappa(kappa)
        epsilons, deltas = self._arrays
        one = deltas + kappa * np.exp(np.minimum(epsilons, 700))
        other = 1 - np.exp(-epsilons) * (1 - deltas - kappa)
        return float(min(1.0, one.min(), other.min()))

    def least(self, success: float) -> float:
        """Largest of what each pair says, at least 0."""
        epsilons, deltas = self._arrays
        one = (success - deltas) * np.exp(-epsilons)
        other = 1 - deltas - np.exp(np.minimum(epsilons, 700)) * (1 - success)
        return float(max(0.0, one.max(), other.max()))


def check_kappa(kappa: float) -> None:
    """Refuse a chance out of range.

    Raises:
        ConfigError: kappa is not above 0 and at most 1.
    """
    if not 0 < kappa <= 1:
        raise ConfigError(f"kappa is {kappa:g}; it is a chance above 0 and at most 1.")
