"""What class statistics of one client say of its single representations, class by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.channels import NoisySums, Statistic
from fedre_privacy.core.class_sums import POOLED
from fedre_privacy.core.triangles import unpack

from .declared import (
    error_of,
    hides_classes,
    noise_among,
    noise_edge,
    samples_behind,
    strengths,
    without_shrinkage,
)
from .spans import Array, Flags, Span, class_spans, pooled_spans
from .vertices import SPARE, Corners, search, two_points

LEVELS = (5e-4, 3e-3, 1e-2, 3e-2)
"""Relative errors of statistics that are tried beyond their own rounding."""
WHOLE = 0.05
"""How far a component's number of samples may be from a whole one."""
WITHIN = 0.01
"""Relative error of a representation that its certificate stands for."""
CAUTION = 3.0
"""How many expected errors must fit into it."""
SQUARE = 0.01
"""How far inner products of two certified ones may be from what the sphere's simplex has."""
ALONE = 3
"""Spare zeros, in corners' own, of one that has no other to be held against."""
EXPLAINED = 0.01
"""Share of a covariance's squared entries that may lie outside of the span of so few images."""


@dataclass(frozen=True, eq=False)
class ClassAnswer:
    """Representations found behind one row of statistics.

    Shape:
        vectors (k, d), k at most the number of images.
        expected_error (k,): of ||x - x'|| / ||x'||.
        certified (k,) bool: see `unpool.Unpool`.
    Args:
        note: what was found and what is left open, without a full stop.
    """

    label: int
    vectors: Array
    expected_error: Array
    certified: Flags
    note: str


def take_apart(
    sent: ClassStatistics, seed: int, *, tries: int, most: int, steps: Sequence[Statistic] = ()
) -> list[ClassAnswer]:
    """Find the representations behind each row of a client's statistics.

    Args:
        seed: of directions that are drawn, with the row's number.
        tries: linear programs for each image, at most.
        most: images of a row, or of all rows that share a covariance, that are tried.
        steps: what the client declared to do to its statistics.
    """
    level = error_of(sent)
    if steps:
        sent, gain = without_shrinkage(sent, steps)
        level *= gain
    ((form, values),) = sent.spread.items()
    noise = noise_among(steps)
    means = sent.means.double().numpy()
    counts = sent.counts.double().tolist()
    spans = None
    if form in POOLED and bool(values.any()):
        behind = None
        if hides_classes(steps, form):
            behind = samples_behind(unpack(values.double(), means.shape[1]), level)
        spans = _pooled(sent, form, values, most, behind)
    answers = []
    for row, label in enumerate(sent.labels.tolist()):
        count, mean = round(counts[row]), means[row]
        said = f"class {label}"
        if abs(counts[row] - count) > WHOLE or count < 1:
            note = f"{said}: a component of {counts[row]:.2f} images, which is no whole number"
        elif count == 1:
            error = level + abs(counts[row] - 1)
            if noise is not None:
                error += noise.sums * len(mean) ** 0.5 / max(float(np.linalg.norm(mean)), 1e-300)
            answers.append(_single(label, mean, error))
            continue
        elif form in ("diagonal", "spherical"):
            note = f"{said}: a {form} covariance of {count} images leaves their signs open"
        elif count > most:
            note = f"{said}: {count} images are more than the {most} tried (attack.most)"
        elif not bool(values[... if form in POOLED else row].any()):
            note = f"{said}: a covariance of zero says nothing of {count} images"
        elif isinstance(spans, str):
            note = f"{said}: {spans}"
        elif count - 1 > len(mean) - SPARE:
            note = f"{said}: the covariance of {count} images has full rank and says nothing"
        else:
            if spans is None:
                matrix = unpack(values[row].double(), len(mean)).numpy()
                found = class_spans(mean, matrix, count)
            else:
                found = [spans[row]]
            if noise is not None:
                found = [_under_noise(span, noise) for span in found]
            own = _search(label, found, level, np.random.default_rng([seed, row]), tries)
            if noise is not None:  # how far off an answer is has not been shown to be known
                own = replace(own, certified=np.zeros_like(own.certified))
            answers.append(own)
            continue
        none = np.zeros(0)
        answers.append(ClassAnswer(label, np.zeros((0, len(mean))), none, none.astype(bool), note))
    return answers


def _single(label: int, mean: Array, error: float) -> ClassAnswer:
    """The mean of one image, certain where it looks as behind a ReLU: noise has no zeros."""
    sparse = bool((mean >= 0).all()) and int((mean == 0).sum()) >= SPARE
    certified = np.array([sparse and CAUTION * error <= WITHIN])
    note = f"class {label}: one image, whose mean is its representation"
    return ClassAnswer(label, mean[None], np.array([error]), certified, note)


def _under_noise(span: Span, noise: NoisySums) -> Span:
    """A span whose rows are as long as before the noise, and whose errors count the mean's."""
    values = np.square(span.rows).sum(1)
    before, _ = strengths(values, noise_edge(noise, len(span.mean)))
    rows = span.rows * np.sqrt(before / np.maximum(values, 1e-300))[:, None]
    return replace(span, rows=rows, error=np.hypot(span.error, noise.sums / span.count))


def _pooled(
    sent: ClassStatistics, form: str, values: Tensor, most: int, behind: int | None
) -> list[Span] | str:
    """The spans of all rows under one covariance, or why there are none.

    Args:
        behind: samples in the covariance, where that may be more than the rows have.
    """
    counts = [round(count) for count in sent.counts.double().tolist()]
    total, (rows, dim) = max(sum(counts), behind or 0), sent.means.shape
    if min(counts, default=0) < 1:
        return "a class without samples has a mean"
    if total - rows > min(dim - SPARE, most):
        return (
            f"one covariance of {total} images of {rows} classes has {total - rows} dimensions; "
            f"at most {min(dim - SPARE, most)} are tried"
        )
    if total == rows:
        return "every class has one image"
    scatter = total * unpack(values.double(), dim).numpy()
    if form == "moment":
        weighted = sent.means.double().numpy() * np.sqrt(np.array(counts))[:, None]
        scatter = scatter - weighted.T @ weighted
    return pooled_spans(sent.means.double().numpy(), counts, scatter, total - rows)


def _levels(level: float) -> Iterator[float]:
    yield level
    yield from (one for one in LEVELS if one > level)


def _search(
    label: int, spans: list[Span], level: float, rng: np.random.Generator, tries: int
) -> ClassAnswer:
    """The most that is found in any of the spans, by the least tolerance that finds as much."""
    count, best, where = spans[0].count, None, spans[0]
    closed = count == 2 and len(spans[0].rows) == 1
    for one in _levels(level):
        for span in spans:
            wide = span.tolerant(one)
            found = two_points(wide) if closed else search(wide, rng, tries)
            sure = int((found.spare >= SPARE).sum())
            if best is None or sure > int((best.spare >= SPARE).sum()):
                best, where = found, wide
        if best is not None and int((best.spare >= SPARE).sum()) >= count - 1:
            break
    assert best is not None
    return _answer(label, best, where)


def _answer(label: int, found: Corners, span: Span) -> ClassAnswer:
    vectors = found.vectors(span)
    lengths = np.maximum(np.linalg.norm(vectors, axis=1), 1e-300)
    error = found.error / lengths
    certified = (found.spare >= SPARE) & (CAUTION * error <= WITHIN)
    certified &= _agrees(found, span) & bool(span.unexplained <= EXPLAINED)
    left = span.count - len(found)
    note = (
        f"class {label} of {span.count} images: {len(found)} found, {int(certified.sum())} certain"
    )
    if left > 1:
        note += f"; any rotation in {left - 1} dimensions explains the other {left}"
    return ClassAnswer(label, vectors, error, certified, note)


def _agrees(found: Corners, span: Span) -> Flags:
    """Which points (k,) have the simplex's inner products with all others, which nothing forced."""
    if len(found) < 2:
        alone: Flags = found.spare >= ALONE * len(span.rows) + SPARE
        return alone
    apart = np.abs(found.points @ found.points.T + 1 / span.count)
    np.fill_diagonal(apart, 0.0)
    agrees: Flags = (np.median(apart, axis=1) <= SQUARE) & (apart.max(1) <= 4 * SQUARE)
    return agrees
