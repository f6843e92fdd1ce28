"""Prototypes from mixtures by linear equations: least squares, ridge, non-negative ridge.

All take weights W (T, n) and uploads R (T, d), float64, with R = W P + noise, and treat the
prototypes P (n, d) as fixed over the rounds. Every dimension shares the small factorisations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.eigenvalues import symmetric_eigen

PENALTIES = tuple(10.0**power for power in range(-10, 2))
"""Penalties tried by leave-one-round-out error."""
SWEEPS = 2000
CONVERGED = 1e-9


@dataclass(frozen=True, eq=False)
class SolvedPrototypes:
    """Prototypes with the error that the solver expects.

    Shape:
        vectors (n, d).
        error (n,): expected ||p - p'||, absolute; NaN where there is no estimate.
        predicted: share of the uploads' squared distance from the mean of the others that the
            answer without each upload predicts of it; NaN where that was not tried.
    """

    vectors: Tensor
    error: Tensor
    predicted: float = math.nan

    @property
    def relative_error(self) -> Tensor:
        """Expected ||p - p'|| / ||p'||, with the answer's own norm for ||p'||, (n,)."""
        size: Tensor = self.vectors.norm(dim=1)
        return self.error / size.clamp(min=1e-12)

    def placed(self, classes: Tensor, wanted: Tensor) -> SolvedPrototypes:
        """Rows for all wanted classes (ascending), NaN for one that `classes` lack."""
        vectors = self.vectors.new_full((len(wanted), self.vectors.shape[1]), torch.nan)
        error = self.error.new_full((len(wanted),), torch.nan)
        at = torch.searchsorted(wanted, classes)
        vectors[at], error[at] = self.vectors, self.error
        return SolvedPrototypes(vectors, error, self.predicted)


def least_squares(weights: Tensor, uploads: Tensor) -> SolvedPrototypes:
    """Solve min ||W P - R||: exact where P is fixed and W has rank n.

    The expected error is the residual amplified by (W'W)^-1; with T = n there is no residual to
    judge by and it is NaN.
    """
    rounds, classes = weights.shape
    vectors = torch.linalg.pinv(weights) @ uploads
    if rounds == classes:
        return SolvedPrototypes(vectors, vectors.new_full((classes,), math.nan))
    left = uploads - weights @ vectors
    spread = torch.linalg.pinv(weights.T @ weights, hermitian=True)
    error = (left.square().sum() / (rounds - classes) * spread.diagonal()).clamp(min=0).sqrt()
    alone = (1 - (weights @ spread * weights).sum(1)).clamp(min=1e-9)
    return SolvedPrototypes(vectors, error, share_predicted(left / alone[:, None], uploads))


def share_predicted(errors: Tensor, uploads: Tensor, *, centred: bool = False) -> float:
    """What is predicted of each upload without it, beside what the mean of the others predicts.

    Args:
        errors: (T, d) of the predictions. uploads: (T, d).
        centred: their mean is known to be 0.
    """
    rounds = len(uploads)
    others = (uploads.sum(0) - uploads) / max(1, rounds - 1) * (0 if centred else 1)
    plain = float((uploads - others).square().sum())
    return 1 - float(errors.square().sum()) / plain if rounds > 1 and plain > 0 else math.nan


def ridge(weights: Tensor, uploads: Tensor, penalty: float | None = None) -> SolvedPrototypes:
    """Solve min ||W P - R||^2 + penalty ||P - 1 m'||^2 with m the mean of the uploads.

    Args:
        penalty: None chooses it by leave-one-round-out error (see `choose_penalty`).
    """
    classes = weights.shape[1]
    penalty = choose_penalty(weights, uploads) if penalty is None else penalty
    mean = uploads.mean(0)
    system = weights.T @ weights + penalty * torch.eye(classes, dtype=weights.dtype)
    vectors = mean + torch.linalg.solve(system, weights.T @ (uploads - mean))
    return SolvedPrototypes(vectors, _expected_errors(weights, uploads - mean, system, penalty))


def non_negative(
    weights: Tensor,
    uploads: Tensor,
    penalty: float | None = None,
    *,
    least: Tensor | None = None,
) -> SolvedPrototypes:
    """Solve `ridge` under P >= 0, which holds for representations that end in a ReLU.

    Coordinate descent over classes, all dimensions at once, from the unconstrained answer.

    Args:
        least: (n, d) lower bounds in place of 0.
    """
    classes = weights.shape[1]
    penalty = choose_penalty(weights, uploads) if penalty is None else penalty
    start = ridge(weights, uploads, penalty)
    mean = uploads.mean(0)
    gram = weights.T @ weights + penalty * torch.eye(classes, dtype=weights.dtype)
    right = weights.T @ uploads + penalty * mean
    bound = torch.zeros_like(start.vectors) if least is None else least
    vectors = start.vectors.maximum(bound)
    if bool((start.vectors < bound).any()):
        scale = float(vectors.abs().max())
        for _ in range(SWEEPS):
            before = vectors.clone()
            for c in range(classes):
                step = (right[c] - gram[c] @ vectors) / gram[c, c]
                vectors[c] = (vectors[c] + step).maximum(bound[c])
            if float((vectors - before).abs().max()) <= CONVERGED * scale:
                break
    return SolvedPrototypes(vectors, start.error)


def choose_penalty(weights: Tensor, uploads: Tensor) -> float:
    """Penalty of `ridge` with the least leave-one-round-out error, of `PENALTIES`.

    With K = W W' + penalty I the error of round t, left out, is (K^-1 R)_t / (K^-1)_tt.
    """
    if len(weights) < 2:
        return PENALTIES[-1]
    centred = uploads - uploads.mean(0)
    values, vectors = symmetric_eigen(weights @ weights.T)
    rotated = vectors.T @ centred
    errors = []
    for penalty in PENALTIES:
        shrunk = penalty / (values.clamp(min=0) + penalty)
        leverage = (vectors.square() @ shrunk).clamp(min=1e-12)
        left_out = (vectors @ (shrunk[:, None] * rotated)) / leverage[:, None]
        errors.append(float(left_out.square().mean()))
    return PENALTIES[min(range(len(errors)), key=errors.__getitem__)]


def _expected_errors(weights: Tensor, centred: Tensor, system: Tensor, penalty: float) -> Tensor:
    """Standard deviation of the answer under P ~ N(m, v I), noise N(0, penalty v I)."""
    rounds = len(weights)
    if rounds < 2:
        return weights.new_full((weights.shape[1],), math.nan)
    fitted = weights @ torch.linalg.solve(system, weights.T @ centred)
    # (W W' + penalty I)^-1 r = (r - W (W'W + penalty I)^-1 W' r) / penalty
    scale = (centred * (centred - fitted)).sum() / penalty / (rounds - 1)
    variance: Tensor = scale * penalty * torch.linalg.inv(system).diagonal()
    return variance.clamp(min=0).sqrt()


def total_least_squares(weights: Tensor, uploads: Tensor, error: float) -> tuple[Tensor, Tensor]:
    """Weights and uploads moved to the nearest pair that some prototypes explain.

    R = W P with errors in W of standard deviation `error` and in R of what least squares leaves:
    [W / error, R / rest] has rank n without errors, so the part of rank n is kept. With no more
    rounds than classes nothing is known to be wrong and nothing moves.

    Args:
        weights: (T, n). uploads: (T, d).

    Reference: Golub, Van Loan, An analysis of the total least squares problem, 1980.
    """
    rounds, classes = weights.shape
    if not error or rounds <= classes:
        return weights, uploads
    fit = torch.linalg.pinv(weights) @ uploads
    left = (uploads - weights @ fit).square().sum() / (rounds - classes) / uploads.shape[1]
    explained = error**2 * fit.square().sum() / uploads.shape[1]
    rest = (left - explained).clamp(min=1e-4 * left).sqrt().clamp(min=1e-30)
    joint = torch.cat([weights / error, uploads / rest], 1)
    basis = torch.linalg.svd(joint, full_matrices=False).U[:, :classes]
    return basis @ (basis.T @ weights), basis @ (basis.T @ uploads)
