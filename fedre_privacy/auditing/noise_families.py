"""Lower bounds on epsilon among mechanisms that differ from a claimed one in their noise alone.

The claimed mechanisms with `factor` times the noise have a trade-off curve of their own. A test
that refutes curves is inverted: of all factors that are refuted the least one gives the bound. It
holds at the level of the test for every mechanism whose curve is one of these. Of others it says
that their curve is not that of the claimed mechanism with so much noise.

References: Mahloujifar, Melis, Chaudhuri, Auditing f-DP in one run, 2024, Section 4; Nasr et al.,
Tight auditing of differentially private machine learning, USENIX Security 2023 (Gaussian curves).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedre_privacy.core.tradeoff import TradeoffCurve
from fedre_privacy.defenses.accounting import curve_of, epsilon_of
from fedre_privacy.defenses.base import Release

STEP = 1.01
"""Between two factors that are tried."""
LEAST, MOST = -512, 2048
"""Powers of `STEP` that are tried: a 160th of the noise, to as much as hides a record in noise that
was all but left out."""
ROUGHLY = 8
"""Steps between two factors that are tried for a ceiling."""


@dataclass(frozen=True)
class Twice:
    """The curve for replacing a record, of one for adding or removing it: one after the other.

    Reference: Dong, Roth, Su, Gaussian differential privacy, Theorem 2.14.
    """

    curve: TradeoffCurve

    @property
    def cap(self) -> float:
        """Not above that of a coin told for certain; to 1e-3 from above."""
        rates = np.linspace(1e-6, 1, 1001)
        best = max(self.most(float(rate)) - float(rate) for rate in rates)
        return min(1.0, 0.5 + best / 2 + 1e-3)

    def most(self, kappa: float) -> float:
        """What two steps of the curve allow."""
        return self.curve.most(min(1.0, max(self.curve.most(kappa), 1e-300)))

    def least(self, success: float) -> float:
        """What two steps of the curve need."""
        return self.curve.least(self.curve.least(success))


@dataclass(frozen=True)
class NoiseFamily:
    """Mechanisms used one after another, and the same with more or less noise.

    Args:
        releases: Gaussian mechanisms. pure: epsilon of others, with delta 0.
        accountant: of sampled releases, ``prv`` or ``rdp``.
        twice: neighbours differ by one record replaced, and the rest is for one added or removed.
    """

    releases: tuple[Release, ...]
    pure: float = 0.0
    accountant: str = "prv"
    twice: bool = False

    def curve(self, factor: float = 1.0) -> TradeoffCurve:
        """What they allow with `factor` times the noise."""
        curve = curve_of(self._scaled(factor), self.pure / factor, self.accountant)
        return Twice(curve) if self.twice else curve

    def epsilon(self, delta: float, factor: float = 1.0) -> float:
        """Epsilon at delta with `factor` times the noise."""
        if self.twice:
            return epsilon_of_curve(self.curve(factor), delta)
        spent = epsilon_of(self._scaled(factor), delta, self.accountant) if delta else 0.0
        return spent + self.pure / factor

    def lower_bound(self, refuted: Callable[[TradeoffCurve], bool], delta: float) -> float:
        """Epsilon at delta with the least noise that is refuted; 0 where none is."""
        return self._epsilon_at(_least(lambda power: refuted(self.curve(STEP**power))), delta)

    def ceiling(self, refuted: Callable[[TradeoffCurve], bool], delta: float) -> float:
        """The same for a perfect attack, on a grid of `ROUGHLY` steps."""
        power = _least(lambda power: refuted(self.curve(STEP ** (ROUGHLY * power))), rough=ROUGHLY)
        return self._epsilon_at(None if power is None else ROUGHLY * power, delta)

    def _epsilon_at(self, power: int | None, delta: float) -> float:
        return 0.0 if power is None else self.epsilon(delta, STEP**power)

    def _scaled(self, factor: float) -> tuple[Release, ...]:
        return tuple(dataclasses.replace(r, noise=factor * r.noise) for r in self.releases)


def epsilon_of_curve(curve: TradeoffCurve, delta: float) -> float:
    """Epsilon at delta that a curve implies: largest log((TPR - delta) / FPR), on a fine grid."""
    rates = np.logspace(-12, -1e-6, 4000)
    above = [(curve.most(float(rate)) - delta) / rate for rate in rates]
    return max(0.0, float(np.log(max(*above, 1.0))))


def _least(refuted: Callable[[int], bool], rough: int = 1) -> int | None:
    """Least number from `LEAST` to `MOST`, over `rough`, that is refuted, as larger ones are."""
    least, most, first = LEAST // rough, MOST // rough, max(1, 8 // rough)
    if refuted(0):
        low, high = -first, 0
        while low > least and refuted(low):
            low, high = 2 * low, low
        if low == least and refuted(low):
            return least
    else:
        low, high = 0, first
        while not refuted(high):
            if high == most:
                return None
            low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high
