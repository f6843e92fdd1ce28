"""Mixtures of which a part was not sent, or that were shortened, beside class means of images."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import LOUDEST_FIRST, is_noisy
from fedre_privacy.attacks.common.row_steps import row_gains
from fedre_privacy.core.channels import Channel

from .gaussian_solver import most_likely_of_sent
from .linear_solver import SolvedPrototypes
from .mixing import Mixing
from .round_alignment import NOISES, AuxImages, align, error_models

PASSES = 2
"""The second expects what the first found; chosen on digits, seeds 0, 56 and 57."""


def solved_of_parts(
    mixing: Mixing,
    seen: list[AuxImages],
    means: list[Tensor],
    channel: Channel,
    penalty: float | None,
) -> SolvedPrototypes:
    """Prototypes where uploads were shortened, or only some coordinates of each were sent.

    Uploads are taken to have been shortened as mixtures of class means would be, then of what was
    found. What is missing is filled by these for the way to the last round, and not read there.

    Args:
        seen: auxiliary images in each round.
        means: class means (n, d) in each round.
        channel: what clients declared.
        penalty: of the maps between rounds, see `align`.
    """
    sent = mixing.uploads != 0
    noises = LOUDEST_FIRST if is_noisy(channel) else NOISES
    solved = SolvedPrototypes(torch.zeros_like(means[-1]), means[-1][:, 0])
    for _ in range(PASSES):
        likely = (mixing.weights[:, None, :] @ (torch.stack(means) + solved.vectors)).squeeze(1)
        gains = row_gains(channel, mixing.uploads, sent, likely)
        filled = torch.where(sent, mixing.uploads / gains, likely)
        there = align(seen, filled, penalty)
        models = error_models(mixing.weights, there.errors, noises, gains[:, 0].reciprocal())
        solved = most_likely_of_sent(models, there.uploads - mixing.weights @ means[-1], sent)
    return SolvedPrototypes(solved.vectors + means[-1], solved.error)
