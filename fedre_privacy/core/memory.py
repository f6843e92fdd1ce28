"""How much memory was taken at most, and how much a GPU has left."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


def peak_bytes(device: torch.device | str = "cpu") -> int:
    """Largest memory of a GPU's tensors, or of this process, so far (bytes)."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():  # Linux: ru_maxrss of a child starts at what its parent held
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def available_bytes() -> int | None:
    """Memory of the machine that a process may still take (bytes); None where nothing tells."""
    told = Path("/proc/meminfo")
    for line in told.read_text(encoding="utf-8").splitlines() if told.is_file() else ():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return None


def free_bytes(device: torch.device) -> int | None:
    """Memory that a GPU has left (bytes); None where it cannot be asked."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
