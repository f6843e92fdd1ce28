"""The optimisers of torch, without torch's compiler.

Some methods of an optimiser import `torch._dynamo` when they are first called, only to be left
alone by it. That takes seconds in every process that trains or attacks, and nothing here is
compiled. The classes of this file do what those of the same names do, to the last bit.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import nn

for _method in vars(torch.optim.Optimizer).values():
    _plain = getattr(_method, "__wrapped__", None)
    if _plain is not None and not hasattr(_plain, "__dynamo_disable"):
        setattr(_plain, "__dynamo_disable", _plain)  # noqa: B010  # what dynamo.disable would be


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class LBFGS(torch.optim.LBFGS):
    """`torch.optim.LBFGS`."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.LBFGS.step))


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
