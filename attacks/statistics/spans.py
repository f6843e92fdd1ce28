"""Where the representations behind class statistics can lie: on a known sphere of a known span.

The representations X (n, d) of a class of n images with mean m and covariance C, divided by n, are
X = 1 m' + Q S, where the rows of S (r, d) are eigenvectors of C times the roots of n times their
eigenvalues. C says no more, so only Q (n, r) is unknown: its rows q_i sum to zero, have the length
sqrt((n - 1) / n) and the inner products -1 / n, the corners of a regular simplex. A pooled
covariance gives one S for all classes of a client, and each class its own simplex in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy  # type: ignore[import-untyped]

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LEVEL = 4.0
"""Of a covariance's errors, what a value may be below zero."""
DEAD = 1e-6
"""Values of a mean below this share of its largest are zero, and so are all behind them."""
ATOM = 0.01
"""Relative spread of the largest coordinates within which they are taken for one value."""
TOP = 5
"""Coordinates that must share that value, at least."""


@dataclass(frozen=True, eq=False)
class Span:
    """The set that one class's representations lie in: mean + q S with |q| known.

    Shape:
        mean (d,); rows (r, d), the matrix S.
        error (d,): standard deviation of a coordinate of mean + q S for a right q, by what the
            statistics do not explain of themselves.
    Args:
        count: images of the class, n.
        unexplained: share of the covariance's squared entries outside of the span.
    """

    mean: Array
    rows: Array
    error: Array
    count: int
    unexplained: float

    @property
    def radius(self) -> float:
        """The length of each q."""
        return math.sqrt((self.count - 1) / self.count)

    @property
    def deviation(self) -> Array:
        """Root of the summed squares of each coordinate of the rows, (d,)."""
        deviation: Array = np.sqrt(np.square(self.rows).sum(0))
        return deviation

    def tolerant(self, level: float) -> Span:
        """The same with errors of at least `level` times the coordinate's own size."""
        size = np.abs(self.mean) + self.deviation / math.sqrt(self.count)
        least = level * (size + 0.5 * math.sqrt(float(np.square(size).mean())))
        return Span(
            self.mean, self.rows, np.maximum(self.error, least), self.count, self.unexplained
        )


def rank_rows(scatter: Array, rank: int) -> tuple[Array, Array, float]:
    """A scatter matrix (d, d) in `rank` rows (r, d), beside a multiple of the identity.

    Returns:
        rows S with S' S near the matrix; the standard deviation of a coordinate of q S for
        |q| = 1, (d,); the share of squared entries that the rows leave out.
    """
    size = len(scatter)
    values, vectors = scipy.linalg.eigh(scatter, subset_by_index=[size - rank, size - 1])
    spare = size - rank
    floor = (float(np.trace(scatter)) - float(values.sum())) / spare if spare else 0.0
    values = np.maximum(values - floor, 1e-12 * max(float(values[-1]), 1e-300))
    rest = scatter - (vectors * values) @ vectors.T
    rest[np.diag_indices(size)] -= floor
    apart = float(np.square(rest).sum() / max(float(np.square(scatter).sum()), 1e-300))
    # an error E of the matrix moves row k of S by v_k' E over the root of its eigenvalue
    error = np.sqrt(np.square(rest).mean(0) * float((1 / values).mean()))
    return (vectors * np.sqrt(values)).T, error, apart


def scales(mean: Array, variance: Array, count: int) -> list[float]:
    """Factors that make a covariance one that is divided by n, the likeliest first.

    No non-negative values of n images vary by more than n - 1 times their squared mean, and those
    that a single image has vary by just that. So if the largest ratios agree they tell the factor:
    1, (n - 1) / n of an unbiased covariance, or that of a shrunk one.
    """
    alive = mean > 1e-3 * mean.max()
    usual = [1.0, (count - 1) / count]
    if count < 2 or int(alive.sum()) < TOP or bool((mean < -DEAD * abs(mean).max()).any()):
        return usual
    ratio = np.sort(variance[alive] / ((count - 1) * np.square(mean[alive])))[::-1]
    top = ratio[: max(TOP, len(ratio) // 100)]
    level = float(np.median(top))
    if level <= 0 or float(top.max() - top.min()) > ATOM * level:
        return usual
    near = [one for one in usual if abs(one * level - 1) < 2 * ATOM]
    return near[:1] or [1 / level]


def class_spans(mean: Array, covariance: Array, count: int) -> list[Span]:
    """The spans that a class's own covariance (d, d) allows for, the likeliest first.

    They differ in a factor on the covariance, see `scales`. A multiple of the identity that was
    added to it is taken off first, as large as the eigenvalues are beyond those of n images.
    """
    rows, error, apart = rank_rows(count * covariance, count - 1)
    radius = math.sqrt((count - 1) / count)
    factors = scales(mean, np.square(rows).sum(0) / count, count)
    return [
        Span(mean, math.sqrt(one) * rows, radius * math.sqrt(one) * error, count, apart)
        for one in factors
    ]


def pooled_spans(means: Array, counts: list[int], scatter: Array, rank: int) -> list[Span]:
    """The spans of classes (m, d) that share one within-class scatter matrix (d, d) of a rank."""
    rows, error, apart = rank_rows(scatter, rank)
    return [
        Span(mean, rows, math.sqrt((count - 1) / count) * error, count, apart)
        for mean, count in zip(means, counts, strict=True)
    ]
