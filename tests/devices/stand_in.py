"""A device that stands in for a GPU: what is on it mixes with nothing else; reads are counted.

Values stay on the CPU, hidden behind tensors whose device is ``standin:0``. As on a GPU, an
operation on tensors of two devices is refused, the exceptions being those that a GPU makes too: a
copy between devices, single numbers, and indices that are on the host. Whatever makes the host wait
for the device (a value read, a size that depends on values, a copy to the host, the end of copies
that were queued) is counted.

The device must be installed before the first backward pass of the process, and stays: use a process
of its own. Launches, streams, graphs, memory and generators of a device are not imitated.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from fedre_privacy.core.host_copies import STREAMS

NAME = "standin"
MAY_MIX = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"}
NEVER_MIX = {"cat", "stack"}
"""They refuse even single numbers of another device."""
WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim",
    "bincount",
}  # fmt: skip
"""Operations after which the host knows values."""

reads: Counter[str] = Counter()
"""How often the host waited, by the package's own line that made it."""
_registered = torch.library.Library("_", "IMPL")


class OnDevice(Tensor):
    """A tensor that says it is on the device."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME, 0),
        )
        made.values = values
        return made

    def tolist(self) -> Any:  # torch refuses it for subclasses
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return call(func, args, kwargs or {})


class Queue:
    """What copies to the host wait in: they are done at once, and the wait for them is counted."""

    def synchronize(self) -> None:
        reads[_line()] += 1


class Module:
    """What torch asks of a device's module."""

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def is_autocast_enabled(self) -> bool:
        return False

    _is_in_bad_fork = is_autocast_enabled

    def manual_seed_all(self, seed: int) -> None:
        """Draws come from the host's generator."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def install() -> torch.device:
    """Make the device known to torch, once in a process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    _registered.fallback(lambda op, *args, **kwargs: call(op, args, kwargs), "PrivateUse1")
    torch.tensor = _moved_when_made(torch.tensor)
    STREAMS[NAME] = lambda device: Queue()
    return torch.device(NAME, 0)


def leave() -> None:
    """End the process at once, with success, without Python's own clearing up.

    After a backward pass torch's thread for the device may still free Python objects. If Python is
    being cleared up then, that thread ends the process with an abort.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Do on the hidden values what was asked of tensors on the device."""
    name = func._schema.name.split("::")[1]
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    here = [t for t in given if isinstance(t, OnDevice)]
    strange = [t for t in given if not isinstance(t, OnDevice) and t.ndim > 0 and t.numel()]
    never = name in NEVER_MIX and len(here) < len(given)
    if here and (never or (strange and name not in MAY_MIX)):
        raise RuntimeError(f"{name}: expected all tensors on the same device, found {NAME} and cpu")
    to_host = torch.device(kwargs.get("device") or NAME).type == "cpu"
    queued = name == "copy_" and (True in args[2:] or kwargs.get("non_blocking"))
    copied_back = name == "copy_" and not isinstance(args[0], OnDevice) and not queued
    if name in WAITS or (here and to_host) or copied_back:
        reads[_line()] += 1
    if torch.Tag.inplace_view in func.tags:  # what the wrapper says of itself changes too
        func(args[0].values, *args[1:], **kwargs)
        with no_dispatch():
            func(*args, **kwargs)
        return args[0]
    plain = kwargs | ({"device": torch.device("cpu")} if kwargs.get("device") else {})
    hidden, options = tree_map_only(OnDevice, lambda t: t.values, (tuple(args), plain))
    out = func(*hidden, **options)
    known = {id(t.values): t for t in here} | {id(t): t for t in strange}
    if to_host:
        return tree_map_only(Tensor, lambda t: t.clone() if id(t) in known else t, out)
    return tree_map_only(Tensor, lambda t: known[id(t)] if id(t) in known else OnDevice(t), out)


def _line() -> str:
    """The innermost line of the package on the stack."""
    ours = [f for f in traceback.extract_stack() if "site-packages" not in f.filename]
    ours = [f for f in ours if Path(f.filename).parent != Path(__file__).parent]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "elsewhere"


def _moved_when_made(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.tensor cannot make what a Python device holds: make it on the host and move it."""

    def made(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        out = make(data, **options)
        return out if device is None else out.to(device)

    return made
