"""Prototypes of one round from all rounds, each carried over by a map learned on aux images.

For each other round s an affine map takes representations of round s to those of round t, learned
on auxiliary images pushed through both extractors. Weights sum to one, so the map passes
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

from fedre_privacy.core.eigenvalues import symmetric_eigen

from .gaussian_solver import Model, most_likely
from .linear_solver import SolvedPrototypes

PENALTIES = (3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
"""Penalties tried, relative to the mean squared norm of the centred representations."""
ERRORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Size of the maps' errors on prototypes tried, relative to single images."""
TINY = 1e-300
NOISES = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class RoundAlignment:
    """Uploads carried to one round.

    Shape:
        uploads (T, d).
        errors (T, T): covariance over rounds of what the maps get wrong on an image left out, in
            units of the images' variance per dimension; zero for the round wanted.
    """

    uploads: Tensor
    errors: Tensor


@dataclass(frozen=True, eq=False)
class AuxImages:
    """Representations of the auxiliary images in one round, ready for regressions on them.

    Shape: reps, inputs (centred) (m, d); centre (d,); values (m,) and vectors (m, m), the
    eigenvalues and eigenvectors of inputs @ inputs.T; size: mean squared norm of the inputs.
    """

    reps: Tensor
    centre: Tensor
    inputs: Tensor
    values: Tensor
    vectors: Tensor
    size: Tensor


def images_of(reps: Tensor) -> AuxImages:
    """Prepare the representations (m, d) of a round's auxiliary images."""
    reps = reps.double()
    centre = reps.mean(0)
    inputs = reps - centre
    kernel = inputs @ inputs.T
    values, vectors = symmetric_eigen(kernel)
    size = kernel.diagonal().mean().clamp(min=1e-300)
    return AuxImages(reps, centre, inputs, values.clamp(min=0), vectors, size)


@dataclass(frozen=True, eq=False)
class RoundMaps:
    """How representations of each round become those of one.

    Args:
        maps: from each round, None where they stay as they are.
        errors: (T, T), as in `RoundAlignment`.
    """

    maps: tuple[RoundMap | None, ...]
    errors: Tensor

    def carry(self, uploads: Tensor) -> Tensor:
        """Uploads (T, d) carried to the round wanted."""
        moved = [u if one is None else one(u) for one, u in zip(self.maps, uploads, strict=True)]
        return torch.stack(moved)

    def take(self, rounds: Sequence[int]) -> RoundMaps:
        """Keep the rounds at these positions."""
        at = torch.as_tensor(rounds)
        return RoundMaps(tuple(self.maps[i] for i in rounds), self.errors[at][:, at])


@dataclass(frozen=True, eq=False)
class RoundMap:
    """An affine map, the identity plus a regression of the change: shift (d,), weight (m, d)."""

    images: AuxImages
    shift: Tensor
    weight: Tensor

    def __call__(self, upload: Tensor) -> Tensor:
        inputs = (upload - self.images.centre) @ self.images.inputs.T
        return upload + self.shift + inputs @ self.weight


def unlearnt_maps(rounds: Tensor) -> RoundMaps:
    """Maps where extractors of earlier rounds are not held: what they did is error that adds up.

    Args:
        rounds: (T,) numbers of the rounds; the last is the one wanted.
    """
    age = (rounds[-1] - rounds).double()
    return RoundMaps((None,) * len(rounds), torch.minimum(age[:, None], age[None]))


def learn_maps(
    rounds: Sequence[AuxImages], penalty: float | None = None, *, at: int = -1
) -> RoundMaps:
    """Learn the maps to one round.

    What auxiliary images do not span stays as it was.

    Args:
        rounds: the same auxiliary images in each round.
        penalty: relative to the mean squared norm of the centred representations; None chooses
            it for each round by the error on images left out.
        at: position of the round wanted; uploads of later ones are carried back to it.
    """
    at = at % len(rounds)
    wanted = rounds[at].reps
    maps: list[RoundMap | None] = []
    errors = []
    for position, images in enumerate(rounds):
        found = None
        left_out = torch.zeros_like(wanted)
        if position != at:
            found, left_out = _learn(images, wanted, penalty)
        maps.append(found)
        errors.append(left_out)
    missed = torch.stack(errors).flatten(1)
    variance = wanted.var(0).sum().clamp(min=1e-300)
    return RoundMaps(tuple(maps), missed @ missed.T / len(wanted) / variance)


def align(
    rounds: Sequence[AuxImages], uploads: Tensor, penalty: float | None = None, *, at: int = -1
) -> RoundAlignment:
    """Learn the maps to one round, see `learn_maps`, and carry uploads (T, d) float64 over."""
    learnt = learn_maps(rounds, penalty, at=at)
    return RoundAlignment(learnt.carry(uploads), learnt.errors)


def _learn(images: AuxImages, wanted: Tensor, penalty: float | None) -> tuple[RoundMap, Tensor]:
    """The map from a round's representations to those wanted (m, d); its errors left out."""
    values, vectors, size = images.values, images.vectors, images.size
    change = wanted - images.reps
    shift = change.mean(0)
    rotated = vectors.T @ (change - shift)
    best: tuple[float, float, Tensor] | None = None
    for one in PENALTIES if penalty is None else (penalty,):
        shrunk = one * size / (values + one * size)
        leverage = (vectors.square() @ shrunk - 1 / len(wanted)).clamp(min=1e-6)
        left_out = (vectors @ (shrunk[:, None] * rotated)) / leverage[:, None]
        error = float(left_out.square().mean())
        if best is None or error < best[0]:
            best = (error, one, left_out)
    if best is None:
        raise ValueError("at least one penalty is needed")
    weight = vectors @ (rotated / (values + best[1] * size)[:, None])
    return RoundMap(images, shift, weight), best[2]


def solve_aligned(
    weights: Tensor,
    alignment: RoundAlignment,
    uploads: Tensor,
    noises: Sequence[float] = NOISES,
    *,
    centred: bool = False,
) -> SolvedPrototypes:
    """Prototypes of a round from uploads carried to it.

    p_c is N(m, v) per dimension, m unknown. What round s adds by its map's error is
    w_s . e_s with e_s independent over classes and, over rounds, of the covariance measured on
    auxiliary images up to one factor; to it comes independent noise. Factor, noise and v are
    chosen by likelihood (generalised least squares).

    Args:
        weights: (T, n).
        uploads: (T, d) those of the alignment, or what is left of them beside a prior.
        noises: tried, in units of the spread of the prototypes per dimension.
        centred: m is known to be 0.
    """
    models = error_models(weights, alignment.errors, noises)
    return most_likely(models, uploads, centred=centred)[0]


def error_models(
    weights: Tensor,
    errors: Tensor,
    noises: Sequence[float],
    own: Tensor | None = None,
    least: float = 0.0,
) -> Iterator[Model]:
    """The models of the grid, see `solve_aligned`.

    Args:
        own: (T,) variance of the noise on each upload over the mean; None: 1.
        least: that mean per dimension is at least this.
    """
    products = weights @ weights.T
    noise_of = (weights.new_ones(len(weights)) if own is None else own).diag()
    prior = weights.new_ones(weights.shape[1])
    for size, noise in product(ERRORS, noises):
        covariance = products * (1 + size * errors) + noise**2 * noise_of
        spread = max(least / noise**2, TINY) if noise else TINY
        yield Model(covariance, weights.T, prior, spread)
