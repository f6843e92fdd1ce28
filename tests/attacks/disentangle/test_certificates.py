"""Which recovered prototypes are right, told without the truth."""

from __future__ import annotations

import math

import pytest
import torch

from fedre_privacy.attacks.mixtures.certificates import certify_prototypes
from fedre_privacy.attacks.mixtures.gaussian_solver import condition, held_out
from fedre_privacy.attacks.mixtures.linear_solver import SolvedPrototypes, least_squares
from fedre_privacy.attacks.mixtures.mixing import Mixing
from fedre_privacy.attacks.mixtures.random_walk import random_walk, walk_models


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def mixing(rounds, *, classes=4, dims=64, noise=0.0, drift=0.0, seed=0):
    """A client's mixtures of prototypes, and the prototypes of the last round."""
    draws = rng(seed)

    def normal(*shape):
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    weights = torch.rand(rounds, classes, generator=draws, dtype=torch.float64) ** 2 + 1e-3
    weights = weights / weights.sum(1, keepdim=True)
    prototypes, uploads = 1 + normal(classes, dims), []
    for t in range(rounds):
        if t:
            prototypes = prototypes + drift * normal(classes, dims)
        uploads.append(weights[t] @ prototypes + noise * normal(dims))
    made = Mixing(0, torch.arange(rounds), torch.arange(classes), weights, torch.stack(uploads))
    return made, prototypes


def solve(made, solver):
    if solver == "least-squares":
        return least_squares(made.weights, made.uploads)
    return random_walk(made.weights, made.uploads, made.rounds)


@pytest.mark.parametrize("solver", ["least-squares", "kalman"])
def test_right_answers_have_one_and_noise_and_wrong_weights_have_none(solver):
    for seed in range(5):
        made, truth = mixing(12, seed=seed)
        solved = solve(made, solver)
        assert bool(certify_prototypes(solved, made).all())
        assert float(((solved.vectors - truth).norm(dim=1) / truth.norm(dim=1)).max()) < 0.05
        drawn = torch.randn(made.uploads.shape, generator=rng(seed), dtype=torch.float64)
        nothing = Mixing(0, made.rounds, made.classes, made.weights, 1 + drawn)
        assert not bool(certify_prototypes(solve(nothing, solver), nothing).any())
        wrong = Mixing(0, made.rounds, made.classes, made.weights.roll(1, 0), made.uploads)
        assert not bool(certify_prototypes(solve(wrong, solver), wrong).any())
        loud, _ = mixing(12, noise=0.5, seed=seed)
        assert not bool(certify_prototypes(solve(loud, solver), loud).any())


@pytest.mark.parametrize("solver", ["least-squares", "kalman"])
def test_certified_answers_are_right_where_some_are_not(solver):
    given = right = wrong = 0
    for seed in range(40):
        made, truth = mixing(
            [4, 5, 6, 12][seed % 4], noise=[0.0, 0.02, 0.05, 0.2][seed // 4 % 4],
            drift=[0.0, 0.02][seed % 2], seed=seed,
        )  # fmt: skip
        solved = solve(made, solver)
        error = (solved.vectors - truth).norm(dim=1) / truth.norm(dim=1)
        sure = certify_prototypes(solved, made)
        given += int(sure.sum())
        right += int((sure & (error <= 0.1)).sum())
        wrong += int((error > 0.1).sum())
    assert given >= 30 and right == given and wrong > 20


def test_weights_without_rounds_to_spare_certify_nothing():
    made, _ = mixing(4)
    exact = SolvedPrototypes(made.uploads, torch.zeros(4, dtype=torch.float64), 1.0)
    assert not bool(certify_prototypes(exact, made).any())
    same = Mixing(0, torch.arange(6), made.classes, made.weights[:1].repeat(6, 1), made.uploads)
    assert same.rank == 1 and not bool(certify_prototypes(exact, same).any())
    enough, _ = mixing(6)
    assert bool(certify_prototypes(exact, enough).all())
    untried = SolvedPrototypes(made.uploads, torch.zeros(4, dtype=torch.float64))
    assert math.isnan(untried.predicted) and not bool(certify_prototypes(untried, enough).any())


def test_a_round_held_out_is_what_the_others_alone_predict():
    made, _ = mixing(8, noise=0.1)
    (model,) = walk_models(made.weights, made.rounds, -1, (0.1,), (0.03,), (0.3,))
    errors = held_out(model, made.uploads)
    kept = torch.tensor([t for t in range(8) if t != 3])
    rest = type(model)(
        model.uploads[kept][:, kept] + 0, model.uploads[3:4, kept], model.uploads[3:4, 3]
    )
    alone, _ = condition(rest, made.uploads[kept])
    assert torch.allclose(made.uploads[3] - alone.vectors[0], errors[3], atol=1e-6)
    solved = least_squares(made.weights, made.uploads)
    others = (made.uploads.sum(0) - made.uploads) / 7
    left = torch.stack(
        [
            made.uploads[t]
            - made.weights[t]
            @ least_squares(
                made.weights[torch.arange(8) != t], made.uploads[torch.arange(8) != t]
            ).vectors
            for t in range(8)
        ]
    )
    share = 1 - left.square().sum() / (made.uploads - others).square().sum()
    assert solved.predicted == pytest.approx(float(share), abs=1e-9)
