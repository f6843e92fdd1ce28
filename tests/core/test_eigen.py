"""Eigenvalues where the fast solver gives up."""

import pytest
import torch

from fedre_privacy.core import eigenvalues as eigen


@pytest.mark.parametrize("fails", [False, True])
def test_eigenvalues_with_and_without_the_fast_solver(monkeypatch, fails):
    rows = torch.randn(40, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, 3:7] = 0  # never sent
    matrix = rows.T @ rows

    def gives_up(given):
        raise torch.linalg.LinAlgError("did not converge")

    if fails:
        monkeypatch.setattr(torch.linalg, "eigh", gives_up)
    values, vectors = eigen.symmetric_eigen(matrix)
    assert (values[1:] >= values[:-1]).all() and values[:4].abs().max() < 1e-9
    assert torch.allclose(vectors @ torch.diag(values) @ vectors.T, matrix)
    assert torch.allclose(vectors.T @ vectors, torch.eye(12, dtype=torch.float64))
