"""Prototypes that no round moves: exact equations, and noise where the surplus rounds show it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .linear_solver import SolvedPrototypes, least_squares
from .random_walk import random_walk

ROUNDED = 1e-5
"""What the equations may leave of uploads in single precision, relative to their norm."""
ALONE = 1 - 1e-6
"""Leverage from which on no other round says anything about what a round shows."""
NOISES = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0)
"""Noise over the spread of prototypes, tried by likelihood."""


def static_prototypes(
    weights: Tensor,
    uploads: Tensor,
    rounds: Tensor,
    *,
    noises: Sequence[float] | None = None,
    centred: bool = False,
) -> SolvedPrototypes:
    """Solve R = W P for prototypes that are the same in every round.

    With as many rounds as classes and no noise declared, or where the equations hold to rounding,
    the answer is that of least squares. Else uploads carry something beside the prototypes (noise,
    or samples weighted anew within a class), and its size and the answer follow by likelihood. A
    class that one round alone determines has no expected error: nothing checks it.

    Args:
        weights: (T, n) of rank n. uploads: (T, d). rounds: (T,) their numbers.
        noises: tried, in units of the spread of the prototypes; None: the usual ones.
        centred: prototypes are spread about 0, not about a mean to be found.
    """
    solved = least_squares(weights, uploads)
    if len(weights) <= weights.shape[1] and noises is None:
        return solved
    left = (uploads - weights @ solved.vectors).norm()
    if noises is not None or left > ROUNDED * uploads.norm():
        grid = NOISES if noises is None else noises
        solved = random_walk(
            weights, uploads, rounds, drifts=(0.0,), common=(0.0,), noises=grid, centred=centred
        )
    error = solved.error.masked_fill(_determined_once(weights), math.nan)
    return SolvedPrototypes(solved.vectors, error, solved.predicted)


def _determined_once(weights: Tensor) -> Tensor:
    """Which classes are open without some single round, (n,) bool."""
    inverse = torch.linalg.pinv(weights)
    alone = (weights * inverse.T).sum(1) > ALONE
    needed: Tensor = inverse[:, alone].abs() > (1 - ALONE) * inverse.abs().max()
    return needed.any(1)
