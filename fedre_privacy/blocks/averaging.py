"""Weighted means of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

State = Mapping[str, Tensor]


def weighted_mean(states: Sequence[State], weights: Tensor) -> dict[str, Tensor]:
    """Average named tensors; weights (len(states),) are normalised to sum 1.

    Raises:
        ValueError: no state, or states with different names.
    """
    if not states or any(set(state) != set(states[0]) for state in states):
        raise ValueError("averaging needs at least one state, and the same names in each")
    share = weights.double() / weights.double().sum()
    return {
        name: torch.einsum(
            "k,k...->...", share, torch.stack([s[name].double() for s in states])
        ).to(first.dtype)
        for name, first in states[0].items()
    }
