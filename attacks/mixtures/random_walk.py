"""Prototypes that drift as a random walk: the answers of a Kalman filter and RTS smoother."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from .gaussian_solver import Model, most_likely
from .linear_solver import SolvedPrototypes

DRIFTS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
COMMON = (0.0, 0.03, 0.1, 0.3, 1.0)
NOISES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)


def random_walk(
    weights: Tensor,
    uploads: Tensor,
    rounds: Tensor,
    *,
    at: int = -1,
    drifts: Sequence[float] = DRIFTS,
    common: Sequence[float] = COMMON,
    noises: Sequence[float] = NOISES,
    centred: bool = False,
) -> SolvedPrototypes:
    """Prototypes as of one round, when each drifts by independent steps and all by common ones.

    p_c starts as N(m, v) per dimension, m unknown; per round it moves by N(0, drift^2 v) of its
    own and N(0, common^2 v) shared by all classes; uploads carry noise N(0, noise^2 v). The three
    ratios are chosen from the grid by likelihood, v in closed form.

    Args:
        weights: (T, n). uploads: (T, d). rounds: (T,) their numbers, gaps count as drift.
        at: position of the round wanted; the last one is what a filter knows, an earlier one
            what a smoother knows.
        drifts, common, noises: the grid, in units of the spread of the prototypes per dimension.
        centred: m is known to be 0.

    Reference: Kalman, 1960; Rauch, Tung, Striebel, 1965 (the same conditional means).
    """
    models = walk_models(weights, rounds, at, drifts, common, noises)
    return most_likely(models, uploads, centred=centred)[0]


def walk_models(
    weights: Tensor,
    rounds: Tensor,
    at: int,
    drifts: Sequence[float],
    common: Sequence[float],
    noises: Sequence[float],
) -> Iterator[Model]:
    """The models of the grid, see `random_walk`."""
    elapsed = (rounds - rounds[0]).to(weights)
    shared = torch.minimum(elapsed[:, None], elapsed[None])
    until = torch.minimum(elapsed, elapsed[at])
    products = weights @ weights.T
    # weights that sum to s_t carry the common drift s_t times
    sums = weights.sum(1)
    total = sums[:, None] * sums[None]
    eye = torch.eye(len(weights), dtype=weights.dtype)
    for drift, together, noise in product(drifts, common, noises):
        own = products * (1 + drift**2 * shared) + together**2 * total * shared
        cross = weights.T * (1 + drift**2 * until) + together**2 * sums * until
        prior = 1 + (drift**2 + together**2) * elapsed[at]
        yield Model(own + noise**2 * eye, cross, prior.expand(weights.shape[1]))
