"""Lower bounds on epsilon: what the right guesses of an attack prove about a mechanism.

Every trial is a fair coin: one of two neighbouring inputs went in, and an attack says which. Bounds
are one-sided, at level 1 - alpha. A bound of 0 says that the attack proved nothing, and nothing
about a better attack; `ceiling` says what a perfect one could have proved with as many trials.

Three kinds of trials:

* independent ones, two kinds of errors counted apart: `epsilon_box`;
* independent ones, right guesses counted, a claim tested: `accuracy_p`, `mu_of_accuracy`; or their
  scores, where these are normal numbers: `mu_of_scores`;
* coins inside one training, whose guesses depend on each other: `epsilon_one_run` for
  (epsilon, delta), `refutes_curve` for a claimed curve.

References: Clopper, Pearson, Biometrika 1934; Nasr et al., Tight auditing of differentially private
machine learning, USENIX Security 2023 (box and Gaussian box); Steinke, Nasr, Jagielski, Privacy
auditing with one training run, NeurIPS 2023, Theorem 5.2; Mahloujifar, Melis, Chaudhuri, Auditing
f-DP in one run, 2024, Theorem 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # type: ignore[import-untyped]
from scipy.special import betaincinv, expit, nctdtrinc, ndtri  # type: ignore[import-untyped]

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.tradeoff import TradeoffCurve

ALPHA = 0.05
"""Chance that a lower bound is above the truth."""
FLAG = 1e-3
"""Chance that a correct claim is called refuted, of one test."""


def upper_share(count: int, of: int, alpha: float) -> float:
    """Upper end of a one-sided Clopper-Pearson interval of a share, at level 1 - alpha."""
    return 1.0 if count >= of else float(betaincinv(count + 1, of - count, 1 - alpha))


def lower_share(count: float, of: int, alpha: float) -> float:
    """Lower end of a one-sided Clopper-Pearson interval of a share, at level 1 - alpha."""
    return 0.0 if count <= 0 else float(betaincinv(count, of - count + 1, alpha))


def share_interval(count: int, of: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval of a share, at level 1 - alpha."""
    return lower_share(count, of, alpha / 2), upper_share(count, of, alpha / 2)


@dataclass(frozen=True)
class Errors:
    """Errors of an attack in independent trials.

    Args:
        fp, n0: wrong guesses among the trials without the record, and how many those are.
        fn, n1: wrong guesses among the trials with it, and how many those are.
    """

    fp: int
    n0: int
    fn: int
    n1: int

    def __post_init__(self) -> None:
        if not (0 <= self.fp <= self.n0 and 0 <= self.fn <= self.n1 and self.n0 and self.n1):
            raise ConfigError(f"{self} counts more errors than trials, or no trials.")

    def rates(self, alpha: float) -> tuple[float, float]:
        """Upper bounds of both error rates, alpha shared between them."""
        return upper_share(self.fp, self.n0, alpha / 2), upper_share(self.fn, self.n1, alpha / 2)


def epsilon_box(errors: Errors, delta: float, alpha: float = ALPHA) -> float:
    """Largest epsilon that independent trials refute; 0 where they refute none.

    (epsilon, delta)-DP allows no point (FPR, FNR) under the two lines
    FNR = 1 - delta - e^epsilon FPR and FPR = 1 - delta - e^epsilon FNR.

    Raises:
        ConfigError: delta or alpha out of range.
    """
    _check(delta, alpha)
    fpr, fnr = errors.rates(alpha)
    above = (1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr
    return max([0.0, *(math.log(ratio) for ratio in above if ratio > 0)])


def accuracy_p(right: int, trials: int, cap: float) -> float:
    """Chance of at least so many right guesses in independent trials if the claim holds.

    Args:
        cap: chance with which the claim allows a guess to be right, `Curve.cap`.
    """
    return float(scipy.stats.binom.sf(right - 1, trials, cap))


def mu_of_accuracy(right: float, trials: int, alpha: float = ALPHA) -> float:
    """Largest mu of a Gaussian curve that right guesses in independent trials refute.

    Args:
        right: a whole number, or a mean of such.
    """
    return max(0.0, 2 * float(ndtri(lower_share(right, trials, alpha))))


def mu_of_scores(scores: Sequence[float], alpha: float = ALPHA) -> float:
    """Largest mu of a Gaussian curve that scores of independent trials refute.

    Args:
        scores: at least two, positive where the coin is guessed right; normal numbers of one mean
            and one deviation, which nothing checks.
    """
    values = np.asarray(scores, dtype=np.float64)
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    if deviation <= 1e-12 * abs(mean):  # no noise at all: as far as guesses go
        return mu_of_accuracy(len(values) if mean > 0 else 0, len(values), alpha)
    return mu_of_effect(mean / deviation, len(values), alpha)


def mu_of_effect(effect: float, trials: int, alpha: float = ALPHA) -> float:
    """The same for scores whose mean is `effect` of their deviations, by the noncentral t law."""
    if effect <= 0 or trials < 2:
        return 0.0
    least = float(nctdtrinc(trials - 1, 1 - alpha, math.sqrt(trials) * effect))
    return max(0.0, 2 * least / math.sqrt(trials))


def one_run_p(slots: int, guessed: int, right: int, epsilon: float, delta: float) -> float:
    """Chance of at least so many right guesses within one run under (epsilon, delta)-DP.

    Args:
        slots: records that a fair coin of their own let in or left out.
        guessed: of them that were guessed, a number fixed before the coins were seen.
        right: of those that were guessed right.
    """
    chance = expit(epsilon)
    tail = scipy.stats.binom.sf(right - 1, guessed, chance)
    if delta == 0 or right == 0:
        return float(min(1.0, tail))
    i = np.arange(1, right + 1)
    mass = scipy.stats.binom.sf(right - i - 1, guessed, chance) - tail
    return float(min(1.0, tail + 2 * slots * delta * np.max(mass / i)))


def epsilon_one_run(
    slots: int, guessed: int, right: int, delta: float, alpha: float = ALPHA
) -> float:
    """Largest epsilon that one run refutes; 0 where it refutes none. Arguments as of `one_run_p`.

    Raises:
        ConfigError: delta or alpha out of range, or more guesses than slots.
    """
    _check(delta, alpha)
    _check_guesses(slots, guessed, right)
    return _largest(lambda epsilon: one_run_p(slots, guessed, right, epsilon, delta) <= alpha)


def refutes_curve(
    slots: int, guessed: int, right: int, curve: TradeoffCurve, alpha: float = ALPHA
) -> bool:
    """Whether one run refutes that the mechanism has a curve."""
    hit, miss = alpha * right / slots, alpha * (guessed - right) / slots
    for i in range(right - 1, -1, -1):
        further = max(miss, curve.least(min(hit, 1.0)))
        if further == miss:
            break
        hit = min(1.0, hit + i / (guessed - i) * (further - miss))
        miss = further
    return hit + miss > guessed / slots


def _largest(refuted: Callable[[float], bool]) -> float:
    """Largest number that is refuted, to 1e-9 from below; 0 where none is."""
    if not refuted(1e-9):
        return 0.0
    low, high = 1e-9, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > 1e4:
            return low
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check(delta: float, alpha: float) -> None:
    if not 0 <= delta < 1:
        raise ConfigError(f"delta is {delta:g}; it must be at least 0 and under 1.")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha:g}; it must lie between 0 and 1, for example 0.05.")


def _check_guesses(slots: int, guessed: int, right: int) -> None:
    if not (0 <= right <= guessed <= slots and guessed > 0):
        raise ConfigError(
            f"{right} right of {guessed} guesses of {slots} slots: of the slots some are guessed, "
            "and of the guesses some are right."
        )
