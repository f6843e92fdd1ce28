"""Mixtures of which a part was not sent, or that were shortened, beside class means of images."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..running.channels import LOUDEST_FIRST, WHOLE
from .aligned import NOISES, Alignment, AuxImages, align, error_models
from .bounded import expected_factors, factors_that_agree
from .gaussian import most_likely_of_sent
from .linear import Solved
from .mixing import Mixing


def solved_of_parts(
    mixing: Mixing,
    seen: list[AuxImages],
    means: list[Tensor],
    factor: float,
    noisy: bool,
    penalty: float | None,
) -> Solved:
    """Prototypes where only some coordinates of each upload were sent.

    What is missing is filled by mixtures of class means for the way to the last round, and
    not read there.

    Args:
        seen: auxiliary images in each round.
        means: class means (n, d) in each round.
        factor: by which the coordinates that were sent were multiplied.
        noisy: whether noise was declared.
        penalty: of the maps between rounds, see `align`.
    """
    likely = (mixing.weights[:, None, :] @ torch.stack(means)).squeeze(1)
    sent = mixing.uploads != 0
    filled = torch.where(sent, mixing.uploads / factor, likely)
    there = align(seen, filled, penalty)
    noises = LOUDEST_FIRST if noisy else NOISES
    models = error_models(mixing.weights, there.errors, noises, there.scale)
    solved = most_likely_of_sent(models, there.uploads - mixing.weights @ means[-1], sent)
    return Solved(solved.vectors + means[-1], solved.error)


def lengthened(
    mixing: Mixing,
    seen: list[AuxImages],
    means: list[Tensor],
    alignment: Alignment,
    bound: float,
    noisy: bool,
    penalty: float | None,
) -> Alignment:
    """Uploads carried over as if they had not been shortened to a bound.

    Args:
        seen, means, noisy, penalty: as in `solved_of_parts`.
    """
    base = align(seen, torch.zeros_like(mixing.uploads), penalty).uploads
    carried = alignment.uploads - base
    factors = expected_factors(mixing.weights, torch.stack(means), bound)
    if not noisy:
        known = mixing.uploads.norm(dim=1) < WHOLE * bound
        expected = torch.where(known, 1.0, factors)
        factors = factors_that_agree(mixing.weights, base, carried, expected, known)
    return replace(alignment, uploads=base + factors[:, None] * carried, scale=factors)
