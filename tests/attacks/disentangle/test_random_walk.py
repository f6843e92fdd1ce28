"""The walk's answers are those of a Kalman filter, and reach the figures expected of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks.mixtures.gaussian_solver import condition, most_likely
from fedre_privacy.attacks.mixtures.linear_solver import choose_penalty, least_squares, ridge
from fedre_privacy.attacks.mixtures.random_walk import random_walk, walk_models
from fedre_privacy.attacks.mixtures.round_alignment import align, images_of, solve_aligned
from fedre_privacy.core.rng import stream


def kalman(
    weights: Tensor, uploads: Tensor, drift: float, common: float, noise: float
) -> tuple[Tensor, Tensor]:
    """State and covariance of the textbook recursion, with a wide prior for the common mean."""
    classes = weights.shape[1]
    ones = torch.ones(classes, classes, dtype=weights.dtype)
    eye = torch.eye(classes, dtype=weights.dtype)
    covariance = eye + 1e6 * ones
    state = uploads.mean(0).repeat(classes, 1)
    for t, (row, seen) in enumerate(zip(weights, uploads, strict=True)):
        if t:
            covariance = covariance + drift**2 * eye + common**2 * ones
        gain = covariance @ row / (row @ covariance @ row + noise**2)
        state = state + gain[:, None] * (seen - row @ state)
        covariance = covariance - gain[:, None] * (row @ covariance)
    return state, covariance


def walk(
    classes: int, rounds: int, drift: float, common: float, noise: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, uploads, and the prototypes of every round (T, n, 512)."""
    rng = stream(0, "walk")

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    weights = torch.rand(rounds, classes, generator=rng, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    states = [normal(classes, 512)]
    for _ in range(rounds - 1):
        states.append(states[-1] + drift * normal(classes, 512) + common * normal(1, 512))
    truth = torch.stack(states)
    uploads = torch.einsum("tn,tnd->td", weights, truth) + noise * normal(rounds, 512)
    return weights, uploads, truth


def centred_cosine(vectors: Tensor, truth: Tensor) -> float:
    centre = truth.mean(0)
    return float(torch.cosine_similarity(vectors - centre, truth - centre, dim=1).mean())


def test_it_is_the_kalman_filter():
    weights, uploads, _ = walk(5, 12, 0.1, 0.2, 0.05)
    (model,) = walk_models(weights, torch.arange(12), -1, (0.1,), (0.2,), (0.05,))
    found = condition(model, uploads)[0]
    state, covariance = kalman(weights, uploads, 0.1, 0.2, 0.05)
    assert torch.allclose(found.vectors, state, atol=1e-4)
    # one overall scale, the same for all classes, makes the errors absolute
    scale = found.error.square() / covariance.diagonal()
    assert torch.allclose(scale, scale[:1].expand(5), rtol=1e-4)


def test_an_earlier_round_is_smoothed():
    """Later uploads help: the smoother beats the filter that stops there."""
    weights, uploads, states = walk(5, 20, 0.05, 0, 0.05)
    rounds, truth = torch.arange(20), states[8]
    smooth = random_walk(weights, uploads, rounds, at=8)
    stopped = random_walk(weights[:9], uploads[:9], rounds[:9])
    assert centred_cosine(smooth.vectors, truth) > centred_cosine(stopped.vectors, truth) + 0.01


@pytest.mark.parametrize(
    ("classes", "rounds", "drift", "common", "noise", "figure"),
    [
        (2, 2, 0, 0, 0, 1.0),
        (2, 100, 0.1, 0, 0, 0.996),
        (10, 10, 0, 0, 0, 1.0),
        (10, 100, 0, 0, 0.05, 0.996),
        (10, 100, 0.03, 0.1, 0, 0.98),
        (20, 10, 0, 0, 0, 0.68),
        (50, 100, 0.03, 0.03, 0, 0.939),
        (94, 100, 0.1, 0, 0, 0.775),
    ],
)
def test_the_expected_figures_are_reached_without_knowing_the_variances(
    classes, rounds, drift, common, noise, figure
):
    weights, uploads, truth = walk(classes, rounds, drift, common, noise)
    found = random_walk(weights, uploads, torch.arange(rounds))
    assert centred_cosine(found.vectors, truth[-1]) == pytest.approx(figure, abs=0.02)


def test_fewer_columns_change_nothing():
    weights, uploads, _ = walk(5, 12, 0.1, 0.2, 0.05)
    models = list(walk_models(weights, torch.arange(12), -1, (0.0, 0.1), (0.0, 0.2), (0.05,)))
    whole = [condition(model, uploads) for model in models]
    best = max(range(4), key=lambda i: whole[i][1])
    found, position = most_likely(models, uploads)
    assert position == best == 3
    assert torch.allclose(found.vectors, whole[best][0].vectors, atol=1e-9)
    assert torch.allclose(found.error, whole[best][0].error)


def test_where_uploads_cannot_tell_the_simplest_holds():
    weights, uploads, truth = walk(2, 2, 0, 0, 0)  # one difference has no shape
    found = random_walk(weights, uploads, torch.arange(2))
    assert torch.allclose(found.vectors, truth[-1], atol=1e-6)


def test_gaps_between_rounds_are_drift():
    weights, uploads, _ = walk(4, 10, 0.1, 0, 0)
    near = random_walk(weights, uploads, torch.arange(10), drifts=(0.1,), common=(0,), noises=(0,))
    far = random_walk(weights, uploads, torch.arange(10) * 4, drifts=(0.05,), common=(0,),
                      noises=(0,))  # fmt: skip
    assert torch.allclose(near.vectors, far.vectors)  # variance grows with time


def test_least_squares_is_worse_under_drift():
    weights, uploads, truth = walk(10, 100, 0.1, 0, 0)
    plain = centred_cosine(least_squares(weights, uploads).vectors, truth[-1])
    assert plain == pytest.approx(0.89, abs=0.03)
    kept = random_walk(weights, uploads, torch.arange(100))
    assert centred_cosine(kept.vectors, truth[-1]) > plain + 0.05


def test_left_out_rounds_are_those_of_the_fit_without_them():
    weights, uploads, _ = walk(4, 9, 0, 0, 0.3)
    centred = uploads - uploads.mean(0)
    eye = torch.eye(4, dtype=torch.float64)
    by_hand = {}
    for penalty in (1e-3, 1e-2, 1e-1, 1.0):
        errors = []
        for t in range(9):
            keep = torch.arange(9) != t
            w, r = weights[keep], centred[keep]
            fitted = torch.linalg.solve(w.T @ w + penalty * eye, w.T @ r)
            errors.append((centred[t] - weights[t] @ fitted).square().mean())
        by_hand[penalty] = float(torch.stack(errors).mean())
    chosen = choose_penalty(weights, uploads)
    assert chosen in by_hand and by_hand[chosen] == min(by_hand.values())
    assert torch.equal(ridge(weights, uploads).vectors, ridge(weights, uploads, chosen).vectors)


def test_an_exact_map_between_rounds_makes_alignment_exact():
    rng = stream(0, "maps")
    turn = torch.randn(6, 16, 16, generator=rng, dtype=torch.float64) / 4
    shift = torch.randn(6, 16, generator=rng, dtype=torch.float64)
    images, truth = torch.randn(2, 200, 16, generator=rng, dtype=torch.float64)
    truth = truth[:3]
    weights = torch.rand(6, 3, generator=rng, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    reps = [images @ a + b for a, b in zip(turn, shift, strict=True)]
    uploads = torch.stack(
        [w @ (truth @ a + b) for w, a, b in zip(weights, turn, shift, strict=True)]
    )
    carried = align([images_of(r) for r in reps], uploads, penalty=1e-12)
    wanted = truth @ turn[-1] + shift[-1]
    assert torch.allclose(carried.uploads, weights @ wanted, atol=1e-6)
    assert torch.equal(carried.errors[-1], torch.zeros(6)) and float(carried.errors.max()) < 1e-9
    found = solve_aligned(weights, carried, carried.uploads).vectors
    assert torch.allclose(found, wanted, atol=1e-4)


def test_left_out_images_are_those_of_the_map_without_them():
    rng = stream(0, "maps")
    past, last = torch.randn(2, 12, 5, generator=rng, dtype=torch.float64)
    penalty = 0.3
    errors = align([images_of(past), images_of(last)], past[:2], penalty).errors[0, 0]
    size = (past - past.mean(0)).square().sum(1).mean()
    missed = []
    for i in range(12):
        keep = torch.arange(12) != i
        x, y = past[keep], (last - past)[keep]
        centred = x - x.mean(0)
        slope = torch.linalg.solve(
            centred.T @ centred + penalty * size * torch.eye(5, dtype=torch.float64),
            centred.T @ (y - y.mean(0)),
        )
        missed.append((last - past)[i] - y.mean(0) - (past[i] - x.mean(0)) @ slope)
    by_hand = torch.stack(missed).square().sum(1).mean() / last.var(0).sum()
    assert float(errors) == pytest.approx(float(by_hand), rel=1e-6)
