"""Prototypes of the last round from all rounds, each carried over by a map learned on aux images.

For each past round s an affine map takes representations of round s to those of the last round t,
learned on auxiliary images pushed through both extractors. Weights sum to one, so the map passes
through the mixture. What the map gets wrong is measured on the same images, left out one at a
time; errors of neighbouring rounds are alike, and their covariance over rounds says how much each
round can be trusted, alone and together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from .gaussian import Model, most_likely
from .linear import Solved

PENALTIES = (3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
"""Penalties tried, relative to the mean squared norm of the centred representations."""
ERRORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Size of the maps' errors on prototypes tried, relative to single images."""
NOISES = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class Alignment:
    """Uploads carried to the last round.

    Shape:
        uploads (T, d).
        errors (T, T): covariance over rounds of what the maps get wrong on an image left out, in
            units of the images' variance per dimension; zero for the last round.
    """

    uploads: Tensor
    errors: Tensor


def align(reps: Sequence[Tensor], uploads: Tensor, penalty: float | None = None) -> Alignment:
    """Learn the maps and carry the uploads over.

    A map is the identity plus a ridge regression of the change, so what auxiliary images do not
    span stays as it was.

    Args:
        reps: for each round the representations (m, d) of the same auxiliary images, the round
            wanted last.
        uploads: (T, d) float64.
        penalty: relative to the mean squared norm of the centred representations; None chooses
            it for each round by the error on images left out.
    """
    last = reps[-1].double()
    carried, errors = [], []
    for past, upload in zip(reps[:-1], uploads[:-1], strict=True):
        there, left_out = _carry(past.double(), last, upload, penalty)
        carried.append(there)
        errors.append(left_out)
    carried.append(uploads[-1])
    errors.append(torch.zeros_like(last))
    missed = torch.stack(errors).flatten(1)
    variance = last.var(0).sum().clamp(min=1e-300)
    return Alignment(torch.stack(carried), missed @ missed.T / len(last) / variance)


def _carry(
    past: Tensor, last: Tensor, upload: Tensor, penalty: float | None
) -> tuple[Tensor, Tensor]:
    """An upload carried over, and the map's errors (m, d) on each image left out."""
    count = len(past)
    centre = past.mean(0)
    inputs, change = past - centre, last - past
    shift = change.mean(0)
    kernel = inputs @ inputs.T
    values, vectors = torch.linalg.eigh(kernel)
    values, rotated = values.clamp(min=0), vectors.T @ (change - shift)
    size = kernel.diagonal().mean().clamp(min=1e-300)
    best: tuple[float, float, Tensor] | None = None
    for one in PENALTIES if penalty is None else (penalty,):
        shrunk = one * size / (values + one * size)
        leverage = (vectors.square() @ shrunk - 1 / count).clamp(min=1e-6)
        left_out = (vectors @ (shrunk[:, None] * rotated)) / leverage[:, None]
        error = float(left_out.square().mean())
        if best is None or error < best[0]:
            best = (error, one, left_out)
    if best is None:
        raise ValueError("at least one penalty is needed")
    weight = vectors @ (rotated / (values + best[1] * size)[:, None])
    return upload + shift + ((upload - centre) @ inputs.T) @ weight, best[2]


def aligned(weights: Tensor, uploads: Tensor, errors: Tensor) -> Solved:
    """Prototypes of the last round from uploads carried to it.

    p_c is N(m, v) per dimension, m unknown. What round s adds by its map's error is
    w_s . e_s with e_s independent over classes and, over rounds, of the covariance measured on
    auxiliary images up to one factor; to it comes independent noise. Factor, noise and v are
    chosen by likelihood (generalised least squares).

    Args:
        weights: (T, n). uploads, errors: as in `Alignment`.
    """
    return most_likely(error_models(weights, errors), uploads)[0]


def error_models(weights: Tensor, errors: Tensor) -> Iterator[Model]:
    """The models of the grid, see `aligned`."""
    products = weights @ weights.T
    eye = torch.eye(len(weights), dtype=weights.dtype)
    prior = weights.new_ones(weights.shape[1])
    for size, noise in product(ERRORS, NOISES):
        yield Model(products * (1 + size * errors) + noise**2 * eye, weights.T, prior)
