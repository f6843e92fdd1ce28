"""Step sizes of a search, which a captured step reads from a buffer."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def warm_cosine(step: int, steps: int) -> float:
    """Share of the peak step size: up over 20 steps, then down a cosine to a fiftieth."""
    return min(1.0, (step + 1) / 20) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the step size, in its buffer where a captured step reads it from one."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
