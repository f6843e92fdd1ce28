"""A tape that captures steps on a CPU as a CUDA graph does on a GPU.

It keeps the calls of one step with their tensors and repeats them on the same buffers, so a value
that was read on the host stays what it was, and reading one is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """A capturer: repeats the tensor calls of one step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable, tuple, dict, object]] = []
        self.captures = self.replays = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        self.calls = []
        step()  # plain first, as the warm-up does
        with self:
            step()
        calls = self.calls

        def replay() -> None:
            self.replays += 1
            with torch.no_grad():
                for func, args, kwargs, out in calls:
                    new = func(*args, **kwargs)
                    if any(a.alias_info is not None for a in func._schema.returns):
                        continue  # a view, or changed in place
                    for kept, made in zip(tree_leaves(out), tree_leaves(new), strict=True):
                        if isinstance(kept, Tensor):
                            kept.copy_(made)

        return replay
