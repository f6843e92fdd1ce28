"""Low-rank factors of matrices by energy (FedKD)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def pack(state: Mapping[str, Tensor], energy: float) -> dict[str, Tensor]:
    """Write each tensor as U, s, V of the smallest rank that keeps `energy`, where that is smaller.

    Convolutions are reshaped to (out, in * kh * kw). A tensor whose factors would hold as many
    numbers as itself is sent as it is, so a message is never larger than the dense one.

    Args:
        energy: share of the squared singular values kept, in (0, 1].

    Returns:
        Names ending in ``.U``, ``.s``, ``.V`` or ``.dense``.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        factors = _factors(tensor, energy) if tensor.dim() >= 2 else None
        if factors is None:
            out[f"{name}.dense"] = tensor
        else:
            out |= {f"{name}.{part}": value for part, value in zip("UsV", factors, strict=True)}
    return out


def _factors(tensor: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    matrix = tensor.flatten(1)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    kept = s.square().cumsum(0)
    enough = (kept >= energy * kept[-1] * (1 - 1e-6)).nonzero()
    rank = int(enough[0]) + 1 if len(enough) else len(s)
    if rank * (sum(matrix.shape) + 1) >= matrix.numel():
        return None
    return u[:, :rank].contiguous(), s[:rank].contiguous(), v[:rank].contiguous()
