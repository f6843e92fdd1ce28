"""Prototypes from mixtures under a Gaussian model with an unknown common mean, or a mean of 0.

A model is the T x T covariance of the uploads (the same for every dimension, up to a scale) and
the covariance of each prototype sought with each upload; the answer is the conditional mean. A
random walk of the prototypes gives what a Kalman filter gives for the last round and an RTS
smoother for earlier ones, in one factorisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .linear_solver import SolvedPrototypes, share_predicted

MARGIN = 1.0
"""How much likelier (nats) a later model must be: where uploads cannot tell, the first holds."""
WORK, LEAST_DIMS = 2_000_000, 64
"""Dimensions times rounds cubed by which a model is chosen at most, and dimensions at least."""
JITTER = 1e-11
"""Least noise variance relative to the prototypes' spread; keeps factorisations definite."""


@dataclass(frozen=True, eq=False)
class Model:
    """Covariances in units of the prototypes' variance per dimension.

    Shape: uploads (T, T); cross (n, T) of the prototypes sought with the uploads; prior (n,).

    Args:
        least: of that variance, which is found by likelihood. Only `most_likely_of_sent` reads it.
    """

    uploads: Tensor
    cross: Tensor
    prior: Tensor
    least: float = 1e-300


def most_likely(
    models: Iterable[Model], uploads: Tensor, *, centred: bool = False
) -> tuple[SolvedPrototypes, int]:
    """Answer under the model in which the uploads are most likely.

    The likelihood is restricted (the common mean is integrated out) and maximised over the
    overall scale, so models are judged by the shape of their covariance alone. They are given
    from simple to rich.

    Args:
        centred: the mean is known to be 0, not to be found out.

    Returns:
        The answer, and the position of the model chosen.
    """
    best: tuple[float, SolvedPrototypes, int, Model] | None = None
    # T uploads span T directions: the same answers from T columns instead of d
    basis, columns = torch.linalg.qr(uploads.T)
    for position, model in enumerate(models):
        solved, likelihood = condition(model, columns.T, dims=uploads.shape[1], centred=centred)
        if best is None or likelihood > best[0] + MARGIN:
            best = (likelihood, solved, position, model)
    if best is None:
        raise ValueError("at least one model is needed")
    _, solved, position, model = best
    errors = held_out(model, columns.T, centred=centred)
    share = share_predicted(errors, columns.T, centred=centred)
    return SolvedPrototypes(solved.vectors @ basis.T, solved.error, share), position


def held_out(model: Model, uploads: Tensor, *, centred: bool = False) -> Tensor:
    """What the other rounds get wrong about each upload (T, d).

    With K the covariance, and P its inverse less what the unknown mean takes, it is (P R)_t / P_tt.
    """
    rounds = len(uploads)
    inverse = torch.linalg.pinv(
        model.uploads + JITTER * torch.eye(rounds, dtype=uploads.dtype), hermitian=True
    )
    if not centred:
        ones = inverse.sum(1, keepdim=True)
        inverse = inverse - ones @ ones.T / ones.sum()
    errors: Tensor = (inverse @ uploads) / inverse.diagonal().clamp(min=1e-300)[:, None]
    return errors


def condition(
    model: Model, uploads: Tensor, *, dims: int | None = None, centred: bool = False
) -> tuple[SolvedPrototypes, float]:
    """Conditional mean of the prototypes given uploads (T, d), and the log likelihood.

    Args:
        dims: number of dimensions that the columns of `uploads` stand for; None: as many.
    """
    rounds, dims = len(uploads), dims or uploads.shape[1]
    covariance = model.uploads + JITTER * torch.eye(rounds, dtype=uploads.dtype)
    factor, bad = torch.linalg.cholesky_ex(covariance)
    if int(bad):
        nothing = uploads.new_full((len(model.cross), uploads.shape[1]), math.nan)
        return SolvedPrototypes(nothing, nothing[:, 0]), -math.inf
    ones = uploads.new_ones(rounds, 1)
    seen_ones = torch.cholesky_solve(ones, factor)
    precision = seen_ones.sum()
    mean = (seen_ones * uploads).sum(0) / precision * (0 if centred else 1)
    about = uploads - mean
    seen = torch.cholesky_solve(about, factor)
    vectors = mean + model.cross @ seen
    gain = torch.cholesky_solve(model.cross.T, factor)
    variance = model.prior - (model.cross.T * gain).sum(0)
    log_determinant = 2 * factor.diagonal().log().sum()
    free = rounds if centred else rounds - 1
    if not centred:
        variance = variance + (1 - model.cross @ seen_ones.squeeze(1)).square() / precision
        log_determinant = log_determinant + precision.log()
    quadratic, freedom = (about * seen).sum(), dims * free
    if freedom == 0:
        return SolvedPrototypes(vectors, variance * math.nan), 0.0
    error = (variance.clamp(min=0) * quadratic / free).sqrt()
    likelihood = -0.5 * (dims * log_determinant + freedom * quadratic.clamp(min=1e-300).log())
    return SolvedPrototypes(vectors, error), float(likelihood)


def most_likely_of_sent(models: Iterable[Model], uploads: Tensor, sent: Tensor) -> SolvedPrototypes:
    """Answer where only some numbers of each upload were sent; the mean is known to be 0.

    Every dimension has a covariance of its own, that of the uploads in which it was sent. A
    dimension that never was is answered by 0. Of many rounds the model is chosen by some of the
    dimensions, see `WORK`.

    Args:
        uploads: (T, d); what was not sent is not read. sent: (T, d) bool.
    """
    rounds, dims = uploads.shape
    if bool(sent.all()):
        basis, columns = torch.linalg.qr(uploads.T)
        best = _choose(models, columns, torch.ones_like(columns), dims)
        solved, _ = _condition_on_sent(best, columns, torch.ones_like(columns), dims)
        return SolvedPrototypes(solved.vectors @ basis.T, solved.error)
    there = sent.T.to(uploads.dtype)
    values = uploads.T * there
    step = -(-dims // max(LEAST_DIMS, WORK // rounds**3))
    best = _choose(models, values[::step], there[::step], len(values[::step]))
    return _condition_on_sent(best, values, there, dims)[0]


def _choose(models: Iterable[Model], values: Tensor, there: Tensor, dims: int) -> Model:
    """The model in which what was sent is most likely, see `_condition_on_sent`."""
    best: tuple[float, Model] | None = None
    for model in models:
        _, likelihood = _condition_on_sent(model, values, there, dims)
        if likelihood > -math.inf and (best is None or likelihood > best[0] + MARGIN):
            best = (likelihood, model)
    if best is None:
        raise ValueError("at least one model with a definite covariance is needed")
    return best[1]


def _condition_on_sent(
    model: Model, values: Tensor, there: Tensor, dims: int
) -> tuple[SolvedPrototypes, float]:
    """Conditional mean of the prototypes (n, k), and the log likelihood.

    Args:
        values: (k, T), 0 where nothing was sent. there: (k, T), 1 where something was.
        dims: number of dimensions that the k rows stand for.
    """
    patterns, which = there.unique(dim=0, return_inverse=True)  # one factorisation for each
    eye = torch.eye(values.shape[1], dtype=values.dtype)
    covariance = (model.uploads + JITTER * eye) * patterns[:, :, None] * patterns[:, None, :]
    found, bad = torch.linalg.cholesky_ex(covariance + (1 - patterns).diag_embed())
    if bool(bad.any()):
        nothing = values.new_full((len(model.cross), len(values)), math.nan)
        return SolvedPrototypes(nothing, nothing[:, 0]), -math.inf
    factor = found[which]
    seen = torch.cholesky_solve(values[:, :, None], factor)
    cross = model.cross * there[:, None, :]  # (k, n, T)
    gain = torch.cholesky_solve(cross.mT, factor)
    variance = (model.prior - (cross.mT * gain).sum(1)).clamp(min=0).mean(0)
    share = dims / len(values)
    count = (there.sum() * share).clamp(min=1)
    quadratic = (values * seen[:, :, 0]).sum()
    scale = (quadratic / count).clamp(min=model.least)
    log_determinant = 2 * share * factor.diagonal(dim1=1, dim2=2).log().sum()
    likelihood = -0.5 * float(log_determinant + count * scale.log() + quadratic / scale)
    return SolvedPrototypes((cross @ seen)[:, :, 0].T, (variance * scale).sqrt()), likelihood
