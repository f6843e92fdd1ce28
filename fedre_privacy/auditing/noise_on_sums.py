"""Canaries for noise on the sums behind class statistics, and what is told from noisy sums.

Two samples x and y of one class move sum and sum of outer products most if the cosine between them
is -1/2 (`defenses.statistics_noise`). So each canary has two coordinates e and g of its own. It is
there as S e, and replaced as S (root 3 g - e) / 2. What the other canaries add to its values is 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.channels import Channel, NoisySums
from fedre_privacy.core.class_sums import POOLED, sums_of
from fedre_privacy.core.types import Emission

MOST_PAIRS = 512
"""Values of a canary's representation, at most: two for each canary of a client."""
THERE, REPLACED = (1.0, 0.0), (-0.5, math.sqrt(3) / 2)
"""The two values of a canary, over the bound."""


def noise_on_sums(channel: Channel) -> NoisySums | None:
    """The noise on sums that a channel declares."""
    return next((step for step in channel.statistics if isinstance(step, NoisySums)), None)


def pairs_of_coordinates(there: Tensor, width: int, length: float) -> Tensor:
    """Representations (n, width): two coordinates for each sample, as far as they go.

    Args:
        there: (n,) bool, whether a sample is there or replaced.
        length: of a representation.
    """
    rows = torch.zeros(len(there), width)
    for place in range(min(len(there), width // 2)):
        values = THERE if there[place] else REPLACED
        rows[place, 2 * place : 2 * place + 2] = length * torch.tensor(values)
    return rows


def ratios_of_sums(
    emission: Emission, noise: NoisySums, labels: Tensor, bound: float, sign: float, width: int
) -> Tensor:
    """Log-likelihood ratios (n,) of being there, of each sample by its own values in noisy sums.

    Args:
        labels: (n,) classes of the samples.
        sign: by which representations were multiplied.
        width: values of a representation.
    """
    sent = emission.artifact
    assert isinstance(sent, ClassStatistics)
    given, ratios = sums_of(sent), torch.zeros(len(labels), dtype=torch.float64)
    for place in range(min(len(labels), width // 2)):
        row = (sent.labels == labels[place]).nonzero().flatten()
        if not len(row):
            continue
        pair = slice(2 * place, 2 * place + 2)
        own, outer = given.sums[row[0], pair] / bound, given.outer
        outer = outer if given.form in POOLED else outer[row[0]]
        expected = [sign * torch.tensor(v, dtype=torch.float64) for v in (THERE, REPLACED)]
        ratio = _ratio(own, expected[0], expected[1], noise.sums / bound)
        size, std = bound**2, noise.outer / bound**2
        if outer.dim() == 2:
            block = outer[pair, pair] / size
            made = [torch.outer(v, v) for v in expected]
            ratio += _ratio(block.diagonal(), made[0].diagonal(), made[1].diagonal(), std)
            apart = std / math.sqrt(2)
            ratio += _ratio(block[0, 1], made[0][0, 1], made[1][0, 1], apart)
        elif given.form == "diagonal":
            squares = [v.square() for v in expected]
            ratio += _ratio(outer[pair] / size, squares[0], squares[1], std)
        ratios[place] = ratio
    return ratios


def _ratio(seen: Tensor, there: Tensor, replaced: Tensor, std: float) -> Tensor:
    """Log of the ratio of two normal laws at what was seen, independent values summed."""
    return ((seen - replaced).square() - (seen - there).square()).sum() / (2 * std**2)
