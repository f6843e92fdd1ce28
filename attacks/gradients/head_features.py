"""Features of the single samples of a batch, out of the gradient of a softmax head.

The gradient of the head's weights and bias, side by side, is the mean of r_i (f_i, 1)' over the
samples, with features f_i and residuals r_i = softmax(W f_i + b) - e_y. Residuals sum to 0, so up
to C - 1 samples leave a matrix whose rows span their (f_i, 1). What picks these out of the span:

- a feature that only one sample has (the others are behind a ReLU) leaves a column that is a
  multiple of that sample's residual. Its ratios are those of the sample's probabilities, so that
  the logits are known but for a constant, and the feature vector follows from a linear system;
- features are often zero: the vector of the span that vanishes on k - 1 features drawn at random is
  a sample's if these are zero for it.

Either way a vector is fitted to its own zeros, and it is right if it says so itself, see `Sample`.
A sample's part is taken off the gradient, which leaves one of a smaller batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

RANK = 4e-7
"""Singular values below this share of the largest are rounding."""
ZERO = (1e-2, 1e-3, 1e-4)
"""Features below these shares of the largest are zero, in turn, while a vector is fitted."""
TINY = 1e-15
"""What a sum of squares that is 0 may come to."""
SPARE = 8
"""Zeros beyond those that fix a vector, that it must have; of features that some sample has."""
NEGATIVE = 3e-4
"""Norm of what is below zero, as a share of the whole, at most."""
RESIDUAL = 1e-4
"""Share of a residual that may lie outside of the columns' span."""
SCALE = 1e-2
"""How far a sample's share of the gradient may be from the one that takes its rank away."""
WITHIN = 0.01
"""Relative error of a vector that its certificate stands for."""
CAUTION = 3.0
"""How many expected errors must fit into it."""
EXACT = 30.0
"""Expected errors of vectors that are taken off together, in multiples of the least: each error
goes on into the vectors of those that are found later."""
FINE = 1e-5
"""Expected error of a vector that is taken off before others are sought by draws."""
ALIKE = 0.05
"""Relative distance below which two vectors are one sample's."""
POOLS = (3, 6, 12, 24)
"""Features that are drawn from, in multiples of the rank: those that are least of all."""
MOST = 40
"""Samples beyond which no features are drawn: the chance of a draw falls by half with each."""
AT_ONCE = 1024
"""Draws at once."""


@dataclass(frozen=True, eq=False)
class HeadFeatures:
    """Features of samples that were told apart.

    Shape:
        features (n, d), not negative; labels (n,) int64.
        expected_error (n,): of ||f - f'|| / ||f'||, by how well the zeros fix the vector.
    Args:
        rank: numeric rank of the gradient, which is the number of samples below C.
        left: share of the gradient's norm that the samples found leave unexplained.

    All are certified: (f, 1) lies in the span of the rows, has no entry below zero, and `SPARE`
    zeros more than fix it; the residual that the head itself makes of f and a label lies in the
    span of the columns; and the gradient less this sample's part has a rank less. The last two are
    C - r equations that nothing was fitted to.
    """

    features: Tensor
    labels: Tensor
    expected_error: Tensor
    rank: int
    left: float


@dataclass(frozen=True, eq=False)
class _Span:
    """What is left of a gradient: columns (C, k), values (k,), rows (d + 1, k), orthonormal."""

    columns: Tensor
    values: Tensor
    rows: Tensor

    def alive(self) -> Tensor:
        """Rows (a, k) of features that some sample has, those with the smallest sums first."""
        size = (self.rows[:-1] * self.values).norm(dim=1)
        order = size.argsort()
        return self.rows[order[size[order] > RANK * size.max()]]

    @staticmethod
    def of(matrix: Tensor, rank: int) -> _Span:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return _Span(left[:, :rank], values[:rank], right[:rank].T)


@dataclass(frozen=True, eq=False)
class _Found:
    features: Tensor
    labels: Tensor
    residuals: Tensor
    error: Tensor

    def extended(self) -> Tensor:
        """Features with a 1 behind them (n, d + 1)."""
        return torch.cat([self.features, torch.ones_like(self.error)[:, None]], 1)

    def take(self, index: Tensor) -> _Found:
        return _Found(
            self.features[index], self.labels[index], self.residuals[index], self.error[index]
        )


def features_of_head_gradient(
    weight_gradient: Tensor,
    bias_gradient: Tensor,
    weight: Tensor,
    bias: Tensor,
    rng: torch.Generator,
    *,
    tries: int,
    count: int | None = None,
) -> HeadFeatures:
    """Tell the samples behind the gradient of a mean cross-entropy apart.

    Args:
        weight_gradient, bias_gradient: (C, d) and (C,).
        weight, bias: of the head at which the gradient was taken.
        rng: draws the features that are taken for zeros.
        tries: draws for each sample, at most, where no column is a residual.
        count: samples that the mean is over; None: the rank. It is more where the head is so sure
            of some samples that nothing of them is left in the gradient.
    """
    mean = torch.cat([weight_gradient, bias_gradient[:, None]], 1).double()
    head = torch.cat([weight, bias[:, None]], 1).detach().double()
    values = torch.linalg.svdvals(mean)
    rank = int((values > RANK * values[0]).sum()) if bool(values[0] > 0) else 0
    matrix, kept, left = mean * (count or rank), [], rank
    most = len(head) - 1 if (count or rank) == rank else len(head) - 2  # else rows span too little
    whole = _Span.of(matrix, rank)
    while left and rank <= most:
        span = _Span.of(matrix, left)
        found, tried = None, matrix.new_zeros(0, left)
        for more in _candidates(span, matrix, head, rng, tries):
            tried = torch.cat([tried, more])
            found = _certain(span, whole, head, tried)
            if found is not None and float(found.error.min()) < FINE:
                break
        if found is None:
            break
        kept.append(found)
        matrix = matrix - found.residuals.T @ found.extended()
        left -= len(found.labels)
    size = float(mean.norm()) * max(count or rank, 1)
    return HeadFeatures(
        torch.cat([one.features for one in kept]) if kept else mean.new_zeros(0, mean.shape[1] - 1),
        torch.cat([one.labels for one in kept]) if kept else torch.zeros(0, dtype=torch.int64),
        torch.cat([one.error for one in kept]) if kept else mean.new_zeros(0),
        rank,
        float(matrix.norm()) / size if size > 0 else 0.0,
    )


def _candidates(
    span: _Span, matrix: Tensor, head: Tensor, rng: torch.Generator, tries: int
) -> Iterator[Tensor]:
    """Vectors (n, k) of a span that may be a sample's, the cheapest first."""
    rank = len(span.values)
    if rank == 1:
        yield span.values.new_ones(1, 1)
        return
    yield _from_columns(span, matrix[:, :-1], head)
    if rank > MOST:
        return
    quiet = span.alive()
    for number in range(math.ceil(tries / AT_ONCE)):
        pool = quiet[: rank * POOLS[number % len(POOLS)]]
        if len(pool) >= rank + SPARE:
            yield _zero_on_drawn(pool, rng)


def _from_columns(span: _Span, columns: Tensor, head: Tensor) -> Tensor:
    """What each column (C, d) with one negative entry says if it is a multiple of a residual.

    For all classes c but the label W_c f + b_c = log column_c + a constant.
    """
    scale = columns.abs().amax(0)
    alive = scale > RANK * scale.max()
    sole = alive & ((columns > RANK * scale).sum(0) == len(head) - 1)
    found = [span.values.new_zeros(0, len(span.values))]
    labels = columns.argmin(0)
    logits = head @ span.rows
    for label in labels[sole].unique().tolist():
        other = torch.arange(len(head)) != label
        logs = columns[:, sole & (labels == label)][other].log()
        # unknown: the vector, whose last entry is 1, and the constant
        system = torch.cat([logits[other], logits.new_ones(len(head) - 1, 1)], 1)
        fixed = torch.cat([span.rows[-1:], logits.new_zeros(1, 1)], 1) * 1e3
        wanted = torch.cat([logs, torch.full_like(logs[:1], 1e3)])
        answer = torch.linalg.lstsq(torch.cat([system, fixed]), wanted, driver="gels").solution
        found.append(answer[:-1].T)
    return torch.cat(found)


def _zero_on_drawn(rows: Tensor, rng: torch.Generator) -> Tensor:
    """Vectors (n, k) that are zero on k - 1 of `rows` (p, k), drawn at random."""
    rank = rows.shape[1]
    order = torch.rand(AT_ONCE, len(rows), generator=rng).topk(rank - 1, dim=1).indices
    drawn = rows[order]
    drawn = drawn / drawn.norm(dim=2, keepdim=True).clamp(min=1e-300)
    _, vectors = torch.linalg.eigh(drawn.mT @ drawn)
    first: Tensor = vectors[:, :, 0]
    return first


def _certain(span: _Span, whole: _Span, head: Tensor, tried: Tensor) -> _Found | None:
    """Samples among vectors (n, k), each once, or None."""
    tried = tried[tried.isfinite().all(1) & (tried.norm(dim=1) > 0)]
    if not len(tried):
        return None
    vectors, error = _fitted(span, tried)
    last = vectors @ span.rows[-1]
    vectors, error = vectors[last != 0] / last[last != 0, None], error[last != 0]
    features = vectors @ span.rows[:-1].T
    below = features.clamp(max=0).norm(dim=1) < NEGATIVE * features.norm(dim=1)
    keep = below & (CAUTION * error <= WITHIN)
    features, vectors, error = features[keep], vectors[keep], error[keep]
    if not len(features):
        return None
    outputs = torch.softmax(features @ head[:, :-1].T + head[:, -1], 1)
    residuals = outputs[:, None] - torch.eye(len(head), dtype=outputs.dtype)
    inside = residuals @ whole.columns
    outside = (residuals - inside @ whole.columns.T).norm(dim=2) / residuals.norm(dim=2)
    share = torch.einsum("nk,nck->nc", vectors / span.values, residuals @ span.columns)
    away = outside / RESIDUAL + (share - 1).abs() / SCALE
    away, labels = away.min(1)
    every = torch.arange(len(labels))
    found = _Found(features.clamp(min=0), labels, residuals[every, labels], error)
    right = away < 1
    if not bool(right.any()):
        return None
    right &= error <= EXACT * error[right].min()
    chosen: list[int] = []
    for place in (away + error).argsort().tolist():
        if not bool(right[place]) or len(chosen) == len(span.values):
            continue
        gaps = (features[chosen] - features[place]).norm(dim=1)
        if bool((gaps > ALIKE * features[place].norm()).all()):
            chosen.append(place)
    return found.take(torch.tensor(chosen)) if chosen else None


def _fitted(span: _Span, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (n, k) fitted to their zeros, of length 1, and expected relative errors (n,).

    The error is infinite where zeros do not fix a vector; those that are out of reach go.
    """
    rows, rank = span.alive(), vectors.shape[1]
    if rank == 1:
        return vectors, vectors.new_zeros(len(vectors))
    error = vectors.new_full((len(vectors),), torch.inf)
    for share in ZERO:
        reached = (vectors @ rows.T).abs()
        zero = reached < share * reached.amax(1, keepdim=True)
        enough = zero.sum(1) >= rank - 1 + SPARE
        vectors, zero = vectors[enough], zero[enough].double()
        if not len(vectors):
            return vectors, error[:0]
        square = torch.einsum("nd,di,dj->nij", zero, rows, rows)
        spread, fits = torch.linalg.eigh(square)
        vectors = fits[:, :, 0]
        rest = (spread[:, 0].clamp(min=TINY) / zero.sum(1)).sqrt()
        error = rest * (1 / spread[:, 1:].clamp(min=1e-300)).sum(1).sqrt()
        reach = (vectors @ rows.T).norm(dim=1) + 1e-300
        error = error * (1 / reach + 1 / (vectors @ span.rows[-1]).abs().clamp(min=1e-300))
    return vectors, error
