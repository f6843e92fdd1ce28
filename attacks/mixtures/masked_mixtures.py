"""Mixtures of which a part was not sent, or that were shortened, beside class means of images."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import LOUDEST_FIRST, WHOLE, is_noisy
from fedre_privacy.attacks.common.row_steps import row_gains
from fedre_privacy.core.channels import Channel

from .gaussian_solver import most_likely_of_sent
from .linear_solver import SolvedPrototypes
from .mixing import Mixing
from .round_alignment import NOISES, AuxImages, RoundAlignment, align, error_models


def solved_of_parts(
    mixing: Mixing,
    seen: list[AuxImages],
    means: list[Tensor],
    channel: Channel,
    penalty: float | None,
) -> SolvedPrototypes:
    """Prototypes where only some coordinates of each upload were sent.

    What is missing is filled by mixtures of class means for the way to the last round, and
    not read there.

    Args:
        seen: auxiliary images in each round.
        means: class means (n, d) in each round.
        channel: what clients declared.
        penalty: of the maps between rounds, see `align`.
    """
    likely = (mixing.weights[:, None, :] @ torch.stack(means)).squeeze(1)
    sent = mixing.uploads != 0
    whole = mixing.uploads / row_gains(channel, mixing.uploads, sent, likely)
    filled = torch.where(sent, whole, likely)
    there = align(seen, filled, penalty)
    noises = LOUDEST_FIRST if is_noisy(channel) else NOISES
    models = error_models(mixing.weights, there.errors, noises, there.scale)
    solved = most_likely_of_sent(models, there.uploads - mixing.weights @ means[-1], sent)
    return SolvedPrototypes(solved.vectors + means[-1], solved.error)


def undo_clipping(
    mixing: Mixing,
    seen: list[AuxImages],
    means: list[Tensor],
    alignment: RoundAlignment,
    bound: float,
    noisy: bool,
    penalty: float | None,
) -> RoundAlignment:
    """Uploads carried over as if they had not been shortened to a bound.

    Args:
        seen, means, penalty: as in `solved_of_parts`.
        bound: to which uploads were shortened. noisy: whether noise was declared.
    """
    base = align(seen, torch.zeros_like(mixing.uploads), penalty).uploads
    carried = alignment.uploads - base
    factors = expected_factors(mixing.weights, torch.stack(means), bound)
    if not noisy:
        known = mixing.uploads.norm(dim=1) < WHOLE * bound
        expected = torch.where(known, 1.0, factors)
        factors = factors_that_agree(mixing.weights, base, carried, expected, known)
    return replace(alignment, uploads=base + factors[:, None] * carried, scale=factors)


SPREAD = 0.15
"""Standard deviation of a true factor about the one expected, relative to it."""
PASSES = 3
KNOWN = 1e6


def expected_factors(weights: Tensor, means: Tensor, bound: float) -> Tensor:
    """By how much mixtures of class means would have been shortened, (T,), at least 1.

    Args:
        weights: (T, n). means: (T, n, d) of each round. bound: length S.
    """
    lengths = (weights[:, None, :] @ means).squeeze(1).norm(dim=1)
    longer: Tensor = (lengths / bound).clamp(min=1)
    return longer


def factors_that_agree(
    weights: Tensor, base: Tensor, carried: Tensor, expected: Tensor, known: Tensor
) -> Tensor:
    """Factors a (T,) for which base + a * carried fit mixtures of the same prototypes best.

    Shortening multiplies an upload by an unknown number below 1, so mixtures no longer fit one set
    of prototypes; mixtures of the same prototypes must agree.

    Minimises the squared rest of base + diag(a) carried after least squares on the weights, over
    its variance, plus the squared distance of a to what is expected, over that of `SPREAD`. The
    rest is quadratic in a. With no more rounds than classes nothing is left to agree on, and the
    answer is what is expected.

    Args:
        weights: (T, n).
        base, carried: (T, d), an upload multiplied by a is carried over to base + a * carried.
        expected: (T,).
        known: (T,) whether the factor is the expected one for certain.
    """
    rounds, dims = carried.shape
    left = rounds - int(torch.linalg.matrix_rank(weights))
    if left < 1:
        return expected
    eye = torch.eye(rounds, dtype=weights.dtype)
    rest = eye - weights @ torch.linalg.pinv(weights)
    curvature, slope = rest * (carried @ carried.T), ((rest @ base) * carried).sum(1)
    sure = torch.where(known, KNOWN, 1.0) / (SPREAD * expected).square()
    found = expected
    for _ in range(PASSES):
        variance = (rest @ (base + found[:, None] * carried)).square().sum() / left / dims
        penalty = variance.clamp(min=1e-12) * sure
        found = torch.linalg.solve(curvature + penalty.diag(), penalty * expected - slope)
        found = found.clamp(min=1)
    return found
