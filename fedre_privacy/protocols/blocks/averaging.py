"""Weighted means of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedre_privacy.models.split import load_parameters, parameters_of

State = Mapping[str, Tensor]


def state_of(module: nn.Module, *, buffers: bool = False) -> dict[str, Tensor]:
    """A detached copy of every parameter and, if asked for, every floating-point buffer.

    Buffers are BatchNorm's running statistics; whole numbers (its count of batches) are left out.
    """
    state = parameters_of(module)
    if buffers:
        state |= {
            name: value.detach().clone()
            for name, value in module.state_dict().items()
            if name not in state and value.is_floating_point()
        }
    return state


def load_state(module: nn.Module, state: State) -> None:
    """Copy what `state_of` returned into a module, in place.

    Raises:
        IncompatibleError: the state does not fit the module's parameters and buffers.
    """
    names = set(module.state_dict()) - {name for name, _ in module.named_parameters()}
    load_parameters(module, {name: v for name, v in state.items() if name not in names})
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in names and name in state:
                buffer.copy_(state[name], non_blocking=True)


def weighted_mean(states: Sequence[State], weights: Tensor) -> dict[str, Tensor]:
    """Average named tensors; weights (len(states),) are normalised to sum 1.

    Raises:
        ValueError: no state, or states with different names.
    """
    if not states or any(set(state) != set(states[0]) for state in states):
        raise ValueError("averaging needs at least one state, and the same names in each")
    share = (weights.double() / weights.double().sum()).tolist()
    mean = {}
    for name, first in states[0].items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for state, part in zip(states, share, strict=True):
            total.add_(state[name], alpha=part)
        mean[name] = total.to(first.dtype)
    return mean
