"""Uncertainty of means over targets that come in clients, also where clients are few.

Targets of one client go together, so clients are the units. Where clients differ as much as the
targets of one do, the mean of n targets has the variance 1 + 1 / n, so a client weighs n / (n + 1)
(`precision`): one with half of all targets weighs little more than the others, and does not cost
the power that they have. The variance of the weighted mean is CR2 (Bell
and McCaffrey, Survey Methodology 28, 2002), with client means of equal variance as the working
model (Imbens and Kolesar, Rev. Econ. Stat. 98, 2016): with weights w_g that
sum to 1, mean m = sum w_g m_g and s = sum w_g^2,

    V = sum_g a_g (m_g - m)^2,   a_g = w_g^2 / (1 - 2 w_g + s),

and (m - mu) / sqrt(V) is referred to a t distribution with Satterthwaite's degrees of freedom of V:
at most G - 1 for G clients. With clients of equal
size it is the t test on client means (Ibragimov and Mueller, J. Bus. Econ. Stat. 28, 2010), which
holds its level of 5 % also where clients differ in variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import (  # type: ignore[import-untyped]
    betainc,
    betaincinv,
    stdtr,
    stdtrit,
)
from torch import Tensor

LEVEL = 0.95
"""Of every interval, two-sided."""

DRAWS = 2000
"""Resamples behind an error of what is no mean."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Means of q columns over clients, each of its `precision`, with their standard errors.

    Shape: all (q,) float64. error and freedom are NaN where a column has fewer than two values.
    units: clients with a value; where only one has any, its targets.
    """

    mean: Tensor
    error: Tensor
    freedom: Tensor
    units: Tensor

    def interval(
        self, level: float = LEVEL, *, bounds: tuple[float, float] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Two-sided interval of each mean, two tensors (q,).

        Args:
            bounds: least and highest possible value. Where all units agree exactly, the error is
                unknown, not 0: with bounds the interval is then that of as many binomial trials
                as there are units (Clopper and Pearson, Biometrika 26, 1934) between them.
        """
        half = _student(1 - (1 - level) / 2, self.freedom) * self.error
        low, high = self.mean - half, self.mean + half
        if bounds is None:
            return low, high
        least, most = bounds
        share = ((self.mean - least) / (most - least)).clamp(0, 1)
        below, above = (
            least + (most - least) * end for end in _binomial(share, self.units, 1 - level)
        )
        silent = (self.error <= _ROUNDING * (most - least)) & (self.units > 1)
        low = torch.where(silent, below, low).clamp(min=least)
        return low, torch.where(silent, above, high).clamp(max=most)

    def p_above(self, bound: float = 0.0) -> Tensor:
        """One-sided p-values (q,) of the means being at most `bound`; NaN without an error.

        Where all units agree exactly it is that of the sign test: 2^-G for G units above.
        """
        t = (self.mean - bound) / self.error
        tail = torch.from_numpy(np.asarray(stdtr(self.freedom.numpy(), -t.numpy())))
        signs = torch.where(self.mean > bound, 0.5**self.units, 1.0)
        return torch.where(self.error <= _ROUNDING, signs, tail)


@dataclass(frozen=True, eq=False)
class Share:
    """Shares of q columns, with the number of independent trials that is worth as much.

    Korn and Graubard (Survey Methodology 24, 1998): a Clopper-Pearson interval with the effective
    number of trials n* = m (1 - m) / V, times the squared ratio of the t quantiles with n - 1 and
    with V's degrees of freedom, at most n. Where V is 0, as for 6 of 6, nothing tells how alike
    the targets of a client are: n* is then the number of clients, as if they were all the same.

    Shape: both (q,) float64.
    """

    mean: Tensor
    trials: Tensor

    def interval(self, level: float = LEVEL) -> tuple[Tensor, Tensor]:
        """Two-sided interval of each share, two tensors (q,) in [0, 1]."""
        return _binomial(self.mean, self.trials, 1 - level)

    def p_above(self, bound: Tensor) -> Tensor:
        """One-sided p-values (q,) of the shares being at most `bound` (q,): the binomial tail."""
        found = self.mean * self.trials
        tail = betainc(
            found.clamp(min=1e-12).numpy(),
            (self.trials - found + 1).numpy(),
            bound.clamp(0, 1).numpy(),
        )
        return torch.where(found <= 0, 1.0, torch.from_numpy(np.asarray(tail)))


_ROUNDING = 1e-9


def precision(counts: Tensor) -> Tensor:
    """What a client weighs by its number of targets: n / (n + 1), see above; 0 without any."""
    return counts / (counts + 1)


def cluster_means(values: Tensor, clusters: Tensor) -> Estimate:
    """Estimate the mean of each column over clusters of rows, each of its `precision`.

    With clusters of equal size that is the mean over rows.

    Args:
        values: (n, q); NaN cells are left out of their column.
        clusters: (n,) int64, for example the client of each row. A column with values in one
            cluster only has its rows as units: its interval then covers that cluster alone.
    """
    values = values.double()
    which = torch.unique(clusters, return_inverse=True)[1]
    together, alone = _by(values, which), _by(values, torch.arange(len(values)))
    single = together.units == 1
    return Estimate(
        *(
            torch.where(single, getattr(alone, name), getattr(together, name))
            for name in ("mean", "error", "freedom", "units")
        )
    )


def _by(values: Tensor, which: Tensor) -> Estimate:
    groups = int(which.max()) + 1 if len(which) else 0
    finite = values.isfinite()
    empty = values.new_zeros(groups, values.shape[1])
    counts = empty.index_add(0, which, finite.double())
    sums = empty.index_add(0, which, torch.where(finite, values, 0.0))
    return weighted_estimates(sums / counts, precision(counts))


def weighted_estimates(means: Tensor, weights: Tensor) -> Estimate:
    """Estimate weighted means of what was measured at each unit.

    Args:
        means: (G, q); ignored where the weight is 0.
        weights: (G, q), at least 0.
    """
    w = weights / weights.sum(0)
    means = torch.where(weights > 0, means, 0.0)
    units = (weights > 0).sum(0).double()
    mean = (w * means).sum(0)
    a, freedom = _parts(w)
    variance = (a * (means - mean).square()).sum(0)
    unknown = units < 2
    return Estimate(
        mean,
        variance.sqrt().masked_fill(unknown, torch.nan),
        freedom.masked_fill(unknown, torch.nan),
        units,
    )


def _parts(w: Tensor) -> tuple[Tensor, Tensor]:
    """Factors a_g (G, q) of the squared deviations and the degrees of freedom (q,).

    With independent client means of variance 1, V has the mean s and the variance
    2 sum_gh a_g a_h k_gh^2, where k_gh = [g = h] + b_g + b_h is the covariance of two deviations
    and b_g = s / 2 - w_g; a scaled chi-squared of the same mean and variance has the degrees of
    freedom s^2 / sum_gh a_g a_h k_gh^2.
    """
    s = w.square().sum(0)
    own = 1 - 2 * w + s
    a = torch.where(w > 0, w.square() / own, 0.0)
    b = s / 2 - w
    square = 2 * a.sum(0) * (a * b.square()).sum(0) + 2 * (a * b).sum(0).square()
    square = square + (a.square() * (own.square() - (2 * b).square())).sum(0)
    return a, s.square() / square


def bootstrap_estimate(draws: Tensor, values: Tensor, weights: Tensor) -> Estimate:
    """Turn resamples of clients into an estimate, for statistics that are no means.

    The standard deviation of the draws is too small by the factor (G - 1) / G in the variance,
    and is referred to a t distribution, as with means (Cameron, Gelbach and Miller, Rev. Econ.
    Stat. 90, 2008).

    Args:
        draws: (draws, q), the statistics when whole clients are drawn with replacement.
        values: (q,) the statistics of all clients.
        weights: (G,) what each client weighs in them. Of one client, whose own cases were
            resampled, the draws are taken as normal.
    """
    w = weights.double() / weights.sum()
    units = int((w > 0).sum())
    error = draws.double().nan_to_num(0.0).std(0)
    freedom = torch.full_like(error, torch.inf)
    if units > 1:
        error = error * (units / (units - 1)) ** 0.5
        freedom = _parts(w[:, None])[1].expand(error.shape)
    return Estimate(values.double(), error, freedom, torch.full_like(error, units))


def shares(values: Tensor, clusters: Tensor) -> Share:
    """Estimate the mean of each column of values in [0, 1] as `cluster_means` does, see `Share`."""
    known = cluster_means(values, clusters)
    count = values.isfinite().sum(0).double()
    mean, variance = known.mean.clamp(0, 1), known.error.square()
    upper = 1 - (1 - LEVEL) / 2
    ratio = _student(upper, (count - 1).clamp(min=1)) / _student(upper, known.freedom)
    trials = (mean * (1 - mean) / variance * ratio.square()).clamp(max=count)
    silent = known.error <= _ROUNDING
    return Share(mean, torch.where(silent, known.units, trials))


def at_least(count: float, chances: Tensor) -> float:
    """Probability that of independent trials at least so many succeed (Poisson binomial).

    Args:
        count: of successes; rounded down.
        chances: (n,) of each trial.
    """
    spread = np.ones(1)
    for chance in chances.double().tolist():
        spread = np.append(spread * (1 - chance), 0.0) + np.append(0.0, spread * chance)
    return float(min(spread[math.floor(count + _ROUNDING) :].sum(), 1.0))


def ends(of: Estimate, bounds: tuple[float, float] | None = None) -> tuple[float, float] | None:
    """The interval of an estimate's one column, or None where it has fewer than two values."""
    low, high = (float(end) for end in of.interval(bounds=bounds))
    return None if math.isnan(low + high) else (low, high)


def finite(value: float) -> float | None:
    """A number, or None for NaN and infinity."""
    return value if math.isfinite(value) else None


def _student(p: float, freedom: Tensor) -> Tensor:
    """Quantile p of the t distribution, (q,)."""
    return torch.from_numpy(np.asarray(stdtrit(freedom.clamp(max=1e9).numpy(), p)))


def _binomial(share: Tensor, trials: Tensor, miss: float) -> tuple[Tensor, Tensor]:
    """Clopper-Pearson interval of a share of (not always whole) trials, missing it by `miss`."""
    found = share * trials
    lost = trials - found
    low = betaincinv(found.clamp(min=1e-12).numpy(), (lost + 1).numpy(), miss / 2)
    high = betaincinv((found + 1).numpy(), lost.clamp(min=1e-12).numpy(), 1 - miss / 2)
    return (
        torch.where(found <= 1e-9, 0.0, torch.from_numpy(np.asarray(low))),
        torch.where(lost <= 1e-9, 1.0, torch.from_numpy(np.asarray(high))),
    )
