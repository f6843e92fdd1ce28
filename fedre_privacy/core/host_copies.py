"""Copies on the host, in page-locked memory where they come from a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor


class Stream(Protocol):
    """What copies are queued on."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""


STREAMS: dict[str, Callable[[torch.device], Stream]] = {"cuda": torch.cuda.current_stream}
"""Kinds of devices whose copies to the host are queued, and the queue of a device."""


class _Pending:
    """Copies under way, and what has to hold of the values that are copied."""

    def __init__(self) -> None:
        self.devices: set[torch.device] = set()
        self.checks: list[tuple[Tensor, Callable[[], None]]] = []

    def settle(self) -> None:
        """Wait for everything; do what was asked for where something does not hold."""
        asked = [holds for holds, _ in self.checks]
        for device in {holds.device for holds in asked}:
            flags = torch.stack([holds for holds in asked if holds.device == device]).tolist()
            self.devices.discard(device)  # what was copied before is there too
            found = [otherwise for holds, otherwise in self.checks if holds.device == device]
            for well, otherwise in zip(flags, found, strict=True):
                if not well:
                    otherwise()
        for device in self.devices:
            STREAMS[device.type](device).synchronize()


_pending: ContextVar[_Pending | None] = ContextVar("pending", default=None)


@contextmanager
def one_wait() -> Iterator[None]:
    """Wait once for all copies of a block, at its end; nothing in it may read them."""
    pending = _Pending()
    token = _pending.set(pending)
    try:
        yield
    finally:
        _pending.reset(token)
    pending.settle()


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU; the copies are contiguous and share no storage with anything.

    Those of a GPU lie in page-locked memory, which is written, and later read, without a stop for
    each tensor. In a block of `one_wait` they hold their values from its end on.
    """
    found: dict[str, Tensor] = {}
    outer = _pending.get()
    pending = _Pending() if outer is None else outer
    for name, tensor in tensors.items():
        given = tensor.detach()
        if given.device.type in STREAMS:
            found[name] = torch.empty(given.shape, dtype=given.dtype, pin_memory=given.is_cuda)
            found[name].copy_(given, non_blocking=True)
            pending.devices.add(given.device)
        else:
            found[name] = given.to("cpu", copy=True).contiguous()
    if outer is None:
        pending.settle()
    return found


def require(holds: Tensor, otherwise: Callable[[], None]) -> None:
    """Call `otherwise` where a check fails: at once, or at the end of a block of `one_wait`.

    Args:
        holds: () bool, on any device. otherwise: may raise.
    """
    pending = _pending.get()
    if pending is not None and holds.device.type in STREAMS:
        pending.checks.append((holds, otherwise))
    elif not bool(holds):
        otherwise()
