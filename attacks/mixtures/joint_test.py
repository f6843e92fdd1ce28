"""Known mixtures of one client over rounds: one Gaussian test of all of them together.

The means of a client's classes hardly change from round to round, while the mix does. Rounds are
therefore not independent, and several of them nearly tell the means apart, which the sum of what
each round says alone cannot see.

Coordinates are whitened and taken as independent; within one the T rounds are jointly normal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .class_statistics import NOISE

OWN = 0.1
"""Part of the correlation between rounds that is taken off, for errors of its estimate."""
EXCESS = (NOISE, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Variance beyond the model, as noise or a defence adds it, over that of a round: tried values."""


def alikeness(strangers: Tensor) -> Tensor:
    """Correlation between rounds of each coordinate, (d, T, T), shrunk towards none.

    Args:
        strangers: whitened deviations of the same images in every round (T, n, d).
    """
    rows = strangers.double().permute(2, 0, 1)
    products = rows @ rows.transpose(1, 2)
    scale = products.diagonal(dim1=1, dim2=2).clamp(min=1e-12).sqrt()
    found = (1 - OWN) * products / (scale[:, :, None] * scale[:, None, :])
    eye = torch.eye(found.shape[1], dtype=torch.bool)
    return torch.where(eye, 1.0, found)


def joint_log_likelihoods(
    shifts: Tensor,
    candidates: Tensor,
    weights: Tensor,
    shared: Tensor,
    alike: Tensor,
    noise: float,
) -> tuple[Tensor, Tensor]:
    """Log-density of all rounds with each candidate of one class, and without any.

    Without: coordinate j of the T deviations ~ N(0, shared * alike_j + noise I). With: the mean
    is weights * candidate_j, and the covariance lacks the candidate's weights weights' * alike_j.

    Args:
        shifts: whitened R_t - mu_t (T, d). candidates: whitened g_t(x) - mu_t (T, m, d).
        weights: of a candidate in each round (T,). shared: sum over classes of v_t v_t' / n (T, T).
        alike: (d, T, T). noise: variance of what is not explained.

    Returns:
        member (m,), other ().
    """
    extra = noise * torch.eye(len(weights)).double()
    without = shared * alike + extra
    within = without - weights[:, None] * weights * alike
    rows = shifts.T[:, :, None]
    gap = rows - weights[:, None] * candidates.permute(2, 0, 1)
    other = _log_normal(rows, without).sum()
    return _log_normal(gap, within), other


def _log_normal(rows: Tensor, covariance: Tensor) -> Tensor:
    """Sum over coordinates of log N(rows; 0, covariance), up to a constant: (d, T, m) to (m,)."""
    factor: Tensor = torch.linalg.cholesky(covariance)
    size: Tensor = factor.diagonal(dim1=1, dim2=2).log().sum()
    solved: Tensor = torch.linalg.solve_triangular(factor, rows, upper=False)
    return -size - solved.square().sum((0, 1)) / 2


def joint_odds(
    shifts: Tensor,
    candidates: Tensor,
    labels: Tensor,
    encodings: Tensor,
    samples: Tensor,
    alike: Tensor,
) -> Tensor:
    """Log-odds of each candidate from all rounds together, (m,).

    What the model leaves unexplained is estimated from the deviations alone, as the value of
    `EXCESS` under which they are most likely.

    Args:
        shifts: (T, d). candidates: (T, m, d), labels (m,): whitened deviations.
        encodings: v of each round (T, C). samples: numbers of samples of each class (G, C), G
            equally likely possibilities. alike: (d, T, T).
    """
    member, other = [], []
    for size in samples.double():
        shared = (encodings / size) @ encodings.T
        level = float(shared.diagonal().mean())
        likely = [
            (float(_log_normal(shifts.T[:, :, None], shared * alike + _eye(shared, e * level))), e)
            for e in EXCESS
        ]
        excess = max(likely)[1] * level
        inside = torch.empty(len(labels), dtype=torch.float64)
        outside = torch.zeros(())
        for label in labels.unique().tolist():
            mine = labels == label
            weights = encodings[:, label] / size[label]
            inside[mine], outside = joint_log_likelihoods(
                shifts, candidates[:, mine], weights, shared, alike, excess
            )
        member.append(inside)
        other.append(outside.expand(len(labels)))
    return torch.stack(member).logsumexp(0) - torch.stack(other).logsumexp(0)


def _eye(like: Tensor, scale: float) -> Tensor:
    return scale * torch.eye(len(like)).to(like)
