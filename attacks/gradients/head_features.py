"""Features of single samples, out of the gradient of a softmax head or its change by training.

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

Local steps over features that do not change leave the same sum, with the residuals of a sample
added up over the steps. These are nearly those of heads on the straight way from before to after,
and exactly known once every sample is found. So nothing is taken off, and zeros decide.
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
HALF_ULP = 2.0**-24
"""What one rounding to float32 moves a number by, as a share of it, at most."""
ABOVE = 2.0
"""By how much something of a head's change must exceed what rounding comes to."""
ALIVE = 5.0
"""By how much a feature must exceed what rounding comes to, to count as one that a sample has."""
NEAR, APART = 0.5, 0.15
"""How far a sample's share may be from 1 under its label, and how much nearer than under others."""
MOMENTS = 8
"""Heads on the way from before to after, at most, at which residuals are computed."""
DRIFT = 0.1
"""Share of a residual, as heads on the way have it, that may lie outside of the columns' span."""


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
    C - r equations that nothing was fitted to. Of a head's change the last one is replaced where
    all samples are found: each one's residuals are above zero but for its own class.
    """

    features: Tensor
    labels: Tensor
    expected_error: Tensor
    rank: int
    left: float


@dataclass(frozen=True, eq=False)
class _Span:
    """What is left of a gradient: columns (C, k), values (k,), rows (d + 1, k), orthonormal.

    rounding: standard deviation of the error of each entry.
    """

    columns: Tensor
    values: Tensor
    rows: Tensor
    rounding: float = 0.0

    def alive(self) -> Tensor:
        """Rows (a, k) of features that some sample has, those with the smallest sums first."""
        size = (self.rows[:-1] * self.values).norm(dim=1)
        order = size.argsort()
        noise = ALIVE * self.rounding * len(self.values) ** 0.5
        return self.rows[order[size[order] > max(RANK * float(size.max()), noise)]]

    @staticmethod
    def of(matrix: Tensor, rank: int, rounding: float = 0.0) -> _Span:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return _Span(left[:, :rank], values[:rank], right[:rank].T, rounding)


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


def features_of_head_change(
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    rng: torch.Generator,
    *,
    tries: int,
    lr: float,
    steps: int,
    count: int,
) -> HeadFeatures:
    """Tell the samples apart on which a head was trained by plain SGD, over fixed features.

    Args:
        before, after: weight (C, d) and bias (C,) of the head, of float32.
        rng: draws the features that are taken for zeros.
        tries: draws for each sample, at most.
        lr, steps: of the local training; each step rounds the head once.
        count: samples of the client. Nothing is answered where the rank is another: the rows then
            span something else too, or not all.
    """
    start, end = (torch.cat([w, b[:, None]], 1).detach().double() for w, b in (before, after))
    unit = count / (lr * steps)  # makes each sample's residuals the mean over its steps
    change = unit * (start - end)
    classes, width = change.shape
    rounding = HALF_ULP * float(torch.maximum(start.abs(), end.abs()).square().mean().sqrt())
    rounding *= unit * math.sqrt(steps)
    values = torch.linalg.svdvals(change)
    least = ABOVE * rounding * (math.sqrt(classes) + math.sqrt(width))
    rank = int((values > least).sum())
    none = HeadFeatures(
        change.new_zeros(0, width - 1), torch.zeros(0, dtype=torch.int64), values[:0], rank, 1.0
    )
    if not 0 < rank == count < classes:
        return none
    span = _Span.of(change, rank, rounding)
    tried = torch.cat([*_candidates(span, change, (start + end) / 2, rng, tries)])
    features, vectors, error = _with_own_zeros(span, tried)
    at = torch.arange(min(steps, MOMENTS)) / min(steps, MOMENTS)  # heads between, as steps see them
    heads = [start + float(moment) * (end - start) for moment in at]
    residuals = torch.stack([_residuals(features, head) for head in heads]).mean(0)
    outside, share = _explained(span, span, vectors, residuals)
    away, labels = (share - 1).abs().masked_fill(outside > DRIFT, torch.inf).sort(1)
    chosen = _each_once(features, error.argsort().tolist(), away[:, 0].isfinite(), rank)
    if len(chosen) < rank:  # their labels are guesses
        near, next_ = away[:, 0], away[:, 1]
        chosen = [one for one in chosen if float(near[one]) < min(NEAR, float(next_[one]) - APART)]
    if not chosen:
        return none
    features, labels, error = features[chosen], labels[chosen, 0], error[chosen]
    rows = torch.cat([features, features.new_ones(len(features), 1)], 1)
    summed = torch.linalg.lstsq(rows.T, change.T, driver="gelsd").solution  # (n, C)
    if len(features) == rank:
        labels = summed.argmin(1)
        size = summed.abs().amax(1, keepdim=True)
        other = torch.ones_like(summed, dtype=torch.bool).scatter(1, labels[:, None], False)
        if bool(((summed < -DRIFT * size) & other).any()):
            return none
    left = float((change - summed.T @ rows).norm() / change.norm())
    return HeadFeatures(features, labels, error, rank, left)


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
    features, vectors, error = _with_own_zeros(span, tried)
    if not len(features):
        return None
    residuals = _residuals(features, head)
    outside, share = _explained(span, whole, vectors, residuals)
    away = outside / RESIDUAL + (share - 1).abs() / SCALE
    away, labels = away.min(1)
    every = torch.arange(len(labels))
    found = _Found(features.clamp(min=0), labels, residuals[every, labels], error)
    right = away < 1
    if not bool(right.any()):
        return None
    right &= error <= EXACT * error[right].min()
    order = (away + error).argsort().tolist()
    chosen = _each_once(features, order, right, len(span.values))
    return found.take(torch.tensor(chosen)) if chosen else None


def _with_own_zeros(span: _Span, tried: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, d), vectors (n, k) and expected errors (n,) of those that zeros fix."""
    vectors, error = _fitted(span, tried)
    last = vectors @ span.rows[-1]
    vectors, error, last = vectors[last != 0], error[last != 0], last[last != 0].abs()
    features = vectors @ span.rows[:-1].T
    moved = span.rounding * (vectors / span.values).norm(dim=1)
    size = features.norm(dim=1)
    error = error + moved * (math.sqrt(len(span.rows)) / size + 1 / last)
    vectors = vectors / (vectors @ span.rows[-1])[:, None]
    features = vectors @ span.rows[:-1].T
    below = features.clamp(max=0).norm(dim=1) < NEGATIVE * features.norm(dim=1)
    keep = below & (CAUTION * error <= WITHIN)
    return features[keep], vectors[keep], error[keep]


def _residuals(features: Tensor, head: Tensor) -> Tensor:
    """What each label would make of the outputs of a head (C, d + 1): (n, C, C)."""
    outputs = torch.softmax(features @ head[:, :-1].T + head[:, -1], 1)
    return outputs[:, None] - torch.eye(len(head), dtype=outputs.dtype)


def _explained(
    span: _Span, whole: _Span, vectors: Tensor, residuals: Tensor
) -> tuple[Tensor, Tensor]:
    """What of residuals (n, C, C) lies outside of the columns, and 1 / what takes a rank off.

    Shape: vectors (n, k) of the span; both answers (n, C).
    """
    inside = residuals @ whole.columns
    outside = (residuals - inside @ whole.columns.T).norm(dim=2) / residuals.norm(dim=2)
    share = torch.einsum("nk,nck->nc", vectors / span.values, residuals @ span.columns)
    return outside, share


def _each_once(features: Tensor, order: list[int], right: Tensor, most: int) -> list[int]:
    """Places of vectors (n, d) that are right, in an order, none of them twice."""
    chosen: list[int] = []
    for place in order:
        if not bool(right[place]) or len(chosen) == most:
            continue
        gaps = (features[chosen] - features[place]).norm(dim=1)
        if bool((gaps > ALIKE * features[place].norm()).all()):
            chosen.append(place)
    return chosen


def _fitted(span: _Span, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (n, k) fitted to their zeros, of length 1, and expected relative errors (n,).

    The error is infinite where zeros do not fix a vector; those that are out of reach go.
    """
    rows, rank = span.alive(), vectors.shape[1]
    if rank == 1:
        return vectors, vectors.new_zeros(len(vectors))
    error = vectors.new_full((len(vectors),), torch.inf)
    for share in (*ZERO, 0.0) if span.rounding else ZERO:
        reached = (vectors @ rows.T).abs()
        noise = ALIVE * span.rounding * (vectors / span.values).norm(dim=1, keepdim=True)
        zero = reached < (share * reached.amax(1, keepdim=True) if share else noise)
        enough = zero.sum(1) >= rank - 1 + SPARE
        vectors, zero = vectors[enough], zero[enough].double()
        if not len(vectors):
            return vectors, error[:0]
        square = torch.einsum("nd,di,dj->nij", zero, rows, rows)
        spread, fits = torch.linalg.eigh(square)
        vectors = fits[:, :, 0]
        rest = (spread[:, 0].clamp(min=TINY) / zero.sum(1)).sqrt()
        noise = span.rounding * (fits / span.values[:, None]).norm(dim=1)  # of each direction
        clear = spread - ABOVE * zero.sum(1, keepdim=True) * noise.square()
        error = rest * (1 / clear[:, 1:].clamp(min=1e-300)).sum(1).sqrt()
        reach = (vectors @ rows.T).norm(dim=1) + 1e-300
        error = error * (1 / reach + 1 / (vectors @ span.rows[-1]).abs().clamp(min=1e-300))
    return vectors, error
