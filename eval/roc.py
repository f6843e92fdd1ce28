"""Right and wrong alarms of a membership attack: the ROC, and its value at a low rate of alarms.

Reference: Carlini et al., Membership inference attacks from first principles, S&P 2022, Section IV
(true-positive rate at a low false-positive rate).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .lower_bounds import share_interval

LOW_RATES = (0.01, 0.001)
"""False-positive rates at which the field reports."""


@dataclass(frozen=True)
class Rate:
    """Share of the members above a threshold, with its 95 % Clopper-Pearson interval.

    The interval is that of independent scores.
    """

    tpr: float
    interval: tuple[float, float]


def tpr_at(inside: Tensor, outside: Tensor, rate: float) -> Rate | None:
    """The true-positive rate at a false-positive rate, or None where too few others are there.

    The threshold is the score of the other candidate that is the first too many; who is above it is
    called a member, and a tie is not. With n others the lowest rate that can be had is 1 / n.

    Args:
        inside: scores of members (n,), higher means member. outside: of the others (m,).
        rate: in (0, 1).
    """
    allowed = int(len(outside) * rate + 1e-9)
    if allowed < 1:
        return None
    threshold = outside.sort(descending=True).values[allowed - 1 : allowed + 1][-1]
    found = int((inside > threshold).sum())
    return Rate(found / len(inside), share_interval(found, len(inside)))


def roc(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """False- and true-positive rates at every threshold, both ascending from (0, 0) to (1, 1).

    Args:
        inside: scores of members (n,), higher means member. outside: of the others (m,).

    Shape: two tensors (k + 1,) float64; k distinct scores.
    """
    levels = torch.cat([inside, outside]).unique().flip(0)
    shares = [
        1 - torch.searchsorted(part.sort().values, levels) / len(part)
        for part in (outside.double(), inside.double())
    ]
    start = torch.zeros(1, dtype=torch.float64)
    fpr, tpr = (torch.cat([start, share.double()]) for share in shares)
    return fpr, tpr
