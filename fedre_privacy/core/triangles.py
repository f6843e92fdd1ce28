"""Symmetric matrices as their upper triangles, which is half of the traffic."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(matrices: Tensor) -> Tensor:
    """Upper triangles (..., d (d + 1) / 2) of symmetric matrices (..., d, d), row by row."""
    row, column = torch.triu_indices(*matrices.shape[-2:])
    return matrices[..., row, column]


def unpack(values: Tensor, dim: int) -> Tensor:
    """Symmetric matrices (..., d, d) of triangles that `pack` made, or of matrices as they are."""
    if values.shape[-2:] == (dim, dim):
        return (values + values.transpose(-1, -2)) / 2
    row, column = torch.triu_indices(dim, dim)
    out = values.new_empty((*values.shape[:-1], dim, dim))
    out[..., row, column] = values
    out[..., column, row] = values
    return out
