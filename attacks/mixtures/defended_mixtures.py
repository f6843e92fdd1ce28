"""Mixtures of which a part was not sent, or that were shortened, beside class means of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import is_noisy
from fedre_privacy.attacks.common.row_steps import row_gains
from fedre_privacy.core.channels import Channel

from .gaussian_solver import most_likely_of_sent
from .linear_solver import SolvedPrototypes
from .mixing import Mixing
from .round_alignment import NOISES, RoundMaps, error_models

RATIOS = tuple(2.0**k for k in range(10, -9, -1))
"""Noise over the spread of prototypes about class means, the loudest first."""
PASSES = 2
"""The second expects what the first found; chosen on digits, seeds 0, 56 and 57."""


def solved_of_parts(
    mixing: Mixing,
    maps: RoundMaps,
    means: list[Tensor],
    channel: Channel,
    sent: Tensor,
    uploads: Sequence[Tensor],
) -> SolvedPrototypes:
    """Prototypes where uploads were shortened, noised, rounded, or sent in part.

    Uploads are taken to have been shortened as mixtures of class means would be, then of what was
    found. What is missing is filled by these for the way to the last round, and not read there.

    Args:
        maps: from each round to the last.
        means: class means (n, d) in each round.
        channel: what clients declared.
        sent: (T, d) bool, whether a number was sent.
        uploads: (m, d) each, in which the mixtures stood.
    """
    noises = RATIOS if is_noisy(channel) else NOISES
    solved = SolvedPrototypes(torch.zeros_like(means[-1]), means[-1][:, 0])
    for _ in range(PASSES):
        likely = (mixing.weights[:, None, :] @ (torch.stack(means) + solved.vectors)).squeeze(1)
        gains, variance = row_gains(channel, mixing.uploads, sent, likely, uploads)
        filled = torch.where(sent, mixing.uploads / gains, likely)
        own = gains[:, 0].square().reciprocal() if variance is None else variance
        least = 0.0 if variance is None else float(variance.mean())
        models = error_models(mixing.weights, maps.errors, noises, own / own.mean(), least)
        left = maps.carry(filled) - mixing.weights @ means[-1]
        solved = most_likely_of_sent(models, left, sent)
    return SolvedPrototypes(solved.vectors + means[-1], solved.error)
