"""Copies on the host, in page-locked memory where they come from a GPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU; the copies are contiguous and share no storage with anything.

    Those of a GPU lie in page-locked memory, which is written, and later read, without a stop for
    each tensor.
    """
    found: dict[str, Tensor] = {}
    devices: set[torch.device] = set()
    for name, tensor in tensors.items():
        given = tensor.detach()
        if given.is_cuda:
            found[name] = torch.empty(given.shape, dtype=given.dtype, pin_memory=True)
            found[name].copy_(given, non_blocking=True)
            devices.add(given.device)
        else:
            found[name] = given.to("cpu", copy=True).contiguous()
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return found
