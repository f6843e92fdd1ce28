"""Single representations as corners of the non-negative part of their span.

Representations behind a ReLU are non-negative, and each is zero in many coordinates. The points
mean + q S that are non-negative form a polytope. A representation is one of its corners, where
hundreds of faces meet, and a linear program finds such a corner for most directions: for that of
a coordinate nearly always, as the image that has most of it. That the corner lies on the sphere
|q|^2 = (n - 1) / n is nowhere demanded, and so says whether it is a representation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy  # type: ignore[import-untyped]

from .spans import DEAD, LEVEL, Array, Span

SPARE = 8
"""Zeros beyond those that a corner has by being one, that a representation must have."""
NEAR = 0.15
"""Relative difference from the sphere within which a corner is looked at more closely."""
SIGMAS = 6.0
"""Standard errors within which it must lie on the sphere, and off the others' directions."""
APART = 0.2
"""How far inner products of two may be from -1 / n."""
FITS = 8
"""Refits of a corner to its zeros, at most."""
NEGATIVE = 0.02
"""Share of coordinates that may be further below zero than errors explain."""
BARREN = 3
"""Tries for each image without a further find after which a search ends."""


@dataclass(frozen=True, eq=False)
class Corners:
    """Representations that were found in a span.

    Shape:
        points (k, r): the q of each; k is at most n.
        error (k,): expected ||x - x'||, absolute.
        spare (k,): zeros beyond those that any corner has.
    Args:
        tries: linear programs solved.
    """

    points: Array
    error: Array
    spare: Array
    tries: int

    def __len__(self) -> int:
        return len(self.points)

    def vectors(self, span: Span) -> Array:
        """The representations (k, d)."""
        found: Array = span.mean + self.points @ span.rows
        return found


@dataclass(frozen=True, eq=False)
class _Fit:
    point: Array
    error: float
    spare: int
    deviation: float
    """Standard error of the point's length."""


def two_points(span: Span) -> Corners:
    """The representations of a class of two, which need no search: mean +- root(1 / 2) S."""
    points = np.array([[span.radius], [-span.radius]])
    values = span.mean + points @ span.rows
    zeros = (np.abs(values) < LEVEL * span.error) & (span.deviation > LEVEL * span.error)
    below = (values < -3 * LEVEL * span.error).mean(1)
    spare = np.where(below > NEGATIVE, 0, zeros.sum(1) - 1)
    error = np.full(2, float(np.sqrt(np.square(span.error).sum())))
    return Corners(points, error, spare, 0)


def search(span: Span, rng: np.random.Generator, tries: int) -> Corners:
    """Representations among the corners of a span's non-negative part.

    Args:
        span: of a class of two or more images.
        rng: draws directions where those of coordinates do not suffice.
        tries: linear programs for each image, at most.
    """
    top = max(float(span.mean.max()), 1e-300)
    seen = (span.mean > DEAD * top) | (span.deviation > LEVEL * span.error)
    part = Span(span.mean[seen], span.rows[:, seen], span.error[seen], span.count, span.unexplained)
    found: list[_Fit] = []
    done = last_find = 0
    for direction in _directions(part, found, rng):
        if len(found) >= span.count - 1 or done >= tries * span.count:
            break
        if done - last_find >= BARREN * span.count:
            break
        done += 1
        corner = _corner(part, direction)
        if corner is None or abs(float(np.linalg.norm(corner)) / part.radius - 1) > NEAR:
            continue
        fit = _refit(part, corner)
        if fit is not None and _on_sphere(part, fit) and _is_new(part, fit, found):
            found.append(fit)
            last_find = done
    if len(found) == span.count - 1 and found:
        last = _last(part, found)
        found += [last] if last is not None else []
    points = np.array([fit.point for fit in found]).reshape(len(found), len(span.rows))
    blur = float(np.square(span.error).sum())
    error = np.array([float(np.sqrt(fit.error**2 + blur)) for fit in found])
    return Corners(points, error, np.array([fit.spare for fit in found], dtype=int), done)


def _directions(span: Span, found: list[_Fit], rng: np.random.Generator) -> Iterator[Array]:
    """Directions (r,) off those found: of the sparsest coordinates not explained yet, and drawn."""
    size = np.maximum(span.mean, DEAD * max(float(span.mean.max()), 1e-300))
    order = iter(np.argsort(-span.deviation / size, kind="stable").tolist())
    while True:
        for place in order:
            had = sum(float(span.mean[place] + f.point @ span.rows[:, place]) for f in found)
            if had <= 0.8 * span.count * span.mean[place]:
                yield _off(span.rows[:, place], found)
                break
        yield _off(rng.standard_normal(len(span.rows)), found)


def _off(direction: Array, found: list[_Fit]) -> Array:
    """A direction less its part along what was found, of length one."""
    if found:
        along = np.linalg.qr(np.array([fit.point for fit in found]).T)[0]
        direction = direction - along @ (along.T @ direction)
    rest: Array = direction / max(float(np.linalg.norm(direction)), 1e-300)
    return rest


def _corner(span: Span, direction: Array) -> Array | None:
    """The farthest point of the non-negative part in a direction, (r,); None: without bound."""
    answer = scipy.optimize.linprog(
        -direction,
        A_ub=-span.rows.T,
        b_ub=span.mean + LEVEL * span.error,
        bounds=(None, None),
        method="highs-ds",
    )
    return np.asarray(answer.x) if answer.status == 0 else None


def _refit(span: Span, point: Array) -> _Fit | None:
    """A point fitted to the coordinates where it is zero, or None where they are too few."""
    weight = 1 / span.error
    informs = span.deviation > LEVEL * span.error
    for _ in range(FITS):
        zeros = (span.mean + point @ span.rows < LEVEL * span.error) & informs
        if int(zeros.sum()) < len(point) + SPARE:
            return None
        system = (span.rows[:, zeros] * weight[zeros]).T
        fitted, _, rank, _ = np.linalg.lstsq(system, -span.mean[zeros] * weight[zeros], rcond=None)
        if rank < len(point):
            return None
        moved = float(np.linalg.norm(fitted - point))
        point = np.asarray(fitted, dtype=np.float64)
        if moved < 1e-9:
            break
    values_at = span.mean + point @ span.rows
    zeros = (np.abs(values_at) < LEVEL * span.error) & informs
    if int(zeros.sum()) < len(point) + SPARE:
        return None
    if float((values_at < -3 * LEVEL * span.error).mean()) > NEGATIVE:
        return None
    loose = max(1.0, float(np.sqrt(np.square(values_at[zeros] * weight[zeros]).mean())))
    inverse = np.linalg.pinv((span.rows[:, zeros] * weight[zeros]).T)
    moves = inverse.T @ span.rows  # what errors of zeros do to all coordinates
    error = loose * float(np.sqrt(np.square(moves).sum()))
    along = loose * float(
        np.linalg.norm(inverse.T @ point) / max(float(np.linalg.norm(point)), 1e-300)
    )
    return _Fit(point, error, int(zeros.sum()) - len(point), along)


def _on_sphere(span: Span, fit: _Fit) -> bool:
    away = abs(float(np.linalg.norm(fit.point)) - span.radius)
    return away < max(SIGMAS * fit.deviation, 1e-3)


def _is_new(span: Span, fit: _Fit, found: list[_Fit]) -> bool:
    return all(abs(float(fit.point @ f.point) + 1 / span.count) < APART for f in found)


def _last(span: Span, found: list[_Fit]) -> _Fit | None:
    """The one image left, which the mean and the others give."""
    point = -np.sum([fit.point for fit in found], axis=0)
    fit = _refit(span, point)
    if fit is not None and _on_sphere(span, fit) and _is_new(span, fit, found):
        return fit
    error = float(np.sqrt(np.sum([f.error**2 for f in found])))
    away = abs(float(np.linalg.norm(point)) - span.radius)
    return _Fit(point, error, 0, 0.0) if away < 0.05 else None
