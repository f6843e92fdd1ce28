"""Logistic regression of shares in [0, 1] on few examples of many features."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
KEPT = 64
"""Principal components of the features that are kept."""
ROUNDS = 15
"""Newton steps."""


def fitted_shares(known: Tensor, shares: Tensor, groups: Tensor, asked: Tensor) -> Tensor:
    """Fit shares (n, P) in [0, 1] to features (n, D) and return those of others (m, P).

    The cross-entropy with the shares is least, plus a ridge penalty on all but the constant, which
    is the one that does best on examples of groups (n,) left out.
    """
    basis = torch.linalg.svd(known, full_matrices=False).Vh[:KEPT].T
    rows, sought = _with_one(known @ basis), _with_one(asked @ basis)
    folds = groups.unique()
    losses = []
    for penalty in PENALTIES:
        total = torch.zeros(shares.shape[1], dtype=torch.float64)
        for fold in folds:
            out = groups == fold
            logits = rows[out] @ _weights(rows[~out], shares[~out], penalty)
            total += (F.softplus(logits) - shares[out] * logits).sum(0)
        losses.append(total)
    best = torch.stack(losses).argmin(0)
    found = torch.empty(len(asked), shares.shape[1], dtype=torch.float64)
    for number in best.unique().tolist():
        here = best == number
        found[:, here] = sought @ _weights(rows, shares[:, here], PENALTIES[number])
    return found.sigmoid()


def _with_one(rows: Tensor) -> Tensor:
    return F.pad(rows, (0, 1), value=1.0)


def _weights(rows: Tensor, shares: Tensor, penalty: float) -> Tensor:
    """Weights (D, P) by Newton's method."""
    width = rows.shape[1]
    ridge = torch.full((width,), penalty, dtype=torch.float64)
    ridge[-1] = 1e-3
    weights = torch.zeros(width, shares.shape[1], dtype=torch.float64)
    for _ in range(ROUNDS):
        found = (rows @ weights).sigmoid()
        slope = rows.T @ (found - shares) + ridge[:, None] * weights
        curve = (found * (1 - found)).T[:, :, None] * rows
        bend = rows.T @ curve + ridge.diag()
        weights = weights - torch.linalg.solve(bend, slope.T[:, :, None])[:, :, 0].T
    return weights
