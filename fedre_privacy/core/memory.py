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
    told = _read_bytes("/proc/self/status", "VmHWM")
    if told is not None:  # Linux: ru_maxrss of a child starts at what its parent held
        return told
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def available_bytes() -> int | None:
    """Memory of the machine that a process may still take (bytes); None where nothing tells."""
    return _read_bytes("/proc/meminfo", "MemAvailable")


def _read_bytes(file: str, word: str) -> int | None:
    path = Path(file)
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if line.startswith(word):
            return int(line.split()[1]) * 1024
    return None


def free_bytes(device: torch.device) -> int | None:
    """Memory that a GPU has left (bytes); None where it cannot be asked."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
