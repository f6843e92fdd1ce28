"""Eigenvalues of symmetric matrices, those too on which the fast solver gives up."""

from __future__ import annotations

import scipy.linalg  # type: ignore[import-untyped]
import torch
from torch import Tensor


def symmetric_eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (n,), ascending, and eigenvectors in columns (n, n) of a symmetric matrix (n, n).

    Divide and conquer may not converge on a matrix with many equal eigenvalues, such as that of
    coordinates that are always 0; the slower QR algorithm does.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        found = scipy.linalg.eigh(matrix.detach().cpu().double().numpy(), driver="ev")
        values, vectors = (torch.from_numpy(part).to(matrix) for part in found)
    return values, vectors
