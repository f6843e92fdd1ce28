"""The optimisers of torch, without torch's compiler.

Some methods of an optimiser import `torch._dynamo` when they are first called, only to be left
alone by it. That takes seconds in every process that trains or attacks, and nothing here is
compiled. The classes of this file do what those of the same names do, to the last bit.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, TypedDict, TypeVar

import torch
from torch import nn

T = TypeVar("T", bound=torch.optim.Optimizer)


def _without_compiler(kind: type[T]) -> type[T]:
    """Class decorator: call what torch wraps for its compiler, in this class alone."""
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        setattr(kind, name, inspect.unwrap(getattr(kind, name)))
    kind.step = torch.no_grad()(inspect.unwrap(kind.step))  # type: ignore[method-assign]
    return kind


@_without_compiler
class SGD(torch.optim.SGD):
    """`torch.optim.SGD`."""


@_without_compiler
class Adam(torch.optim.Adam):
    """`torch.optim.Adam`."""


@_without_compiler
class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`."""


@_without_compiler
class LBFGS(torch.optim.LBFGS):
    """`torch.optim.LBFGS`."""

    step: Any


class Group(TypedDict):
    """Parameters that are trained with one step size."""

    params: list[nn.Parameter]
    lr: float


def groups_of(modules: Sequence[nn.Module], lr: float | Sequence[float]) -> list[Group]:
    """One group for each module, of the parameters that are trained.

    Args:
        lr: one step size, or one for each module.
    """
    rates = [lr] * len(modules) if isinstance(lr, int | float) else lr
    return [
        {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate}
        for module, rate in zip(modules, rates, strict=True)
    ]
