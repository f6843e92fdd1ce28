"""Candidates for an image, and the regressions that move them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedre_privacy.attacks.inversion import kalman_update as kalman
from fedre_privacy.attacks.inversion.kalman_update import (
    PENALTIES,
    DctBands,
    kalman_update,
    leave_one_out,
    without_fold,
)

HERE = torch.device("cpu")


# --- coefficients --------------------------------------------------------------------------------


def test_coefficients_up_to_all_frequencies_are_the_image():
    images = torch.rand(3, 2, 6, 5)
    waves = DctBands((2, 6, 5), 9.0, HERE)
    assert torch.allclose(waves.images(waves.of(images)), images, atol=1e-5)
    low = DctBands((2, 6, 5), 2.0, HERE)
    kept = low.images(low.of(images))
    assert low.of(images).shape[1] < 60
    assert torch.allclose(low.images(low.of(kept)), kept, atol=1e-5)
    assert torch.allclose(kept.mean((2, 3)), images.mean((2, 3)), atol=1e-5)


def test_bands_rise_with_frequency_whatever_the_size():
    for side in (8, 16, 64):
        waves = DctBands((1, side, side), 19.2, HERE)
        assert sum(waves.sizes) == len(waves.kept) and min(waves.sizes) >= 1
        frequencies = waves.kept % waves.block[2] + waves.kept // waves.block[2]
        means = [part.float().mean() for part in frequencies.split(waves.sizes)]
        assert means == sorted(means) and len(set(means)) == len(means) > 3


# --- regressions ---------------------------------------------------------------------------------


def kinds(count):
    return [leave_one_out, partial(without_fold, fold=torch.arange(count) % 4)]


@pytest.mark.parametrize("kind", [0, 1], ids=["own", "fold"])
def test_candidates_come_to_the_mean_given_a_linear_representation(kind):
    draw = torch.Generator().manual_seed(0)
    spread = torch.tensor([3.0, 2.0, 1.0, 1.0, 0.5, 0.1])
    weight = torch.randn(6, 3, generator=draw)
    waves = torch.randn(4000, 6, generator=draw) * spread
    wanted = (torch.randn(6, generator=draw) * spread) @ weight
    after = waves + kinds(4000)[kind](waves @ weight, waves, wanted, [2, 2, 2])
    prior = torch.diag(spread.square())
    gain = torch.linalg.solve(weight.T @ prior @ weight, weight.T @ prior)
    assert torch.allclose(after.mean(0), wanted @ gain, atol=0.1)
    assert torch.allclose(torch.cov(after.T), prior - prior @ weight @ gain, atol=0.3)


@pytest.mark.parametrize("kind", [0, 1], ids=["own", "fold"])
def test_what_a_representation_does_not_tell_is_not_moved(kind):
    draw = torch.Generator().manual_seed(0)
    waves = torch.randn(200, 8, generator=draw)
    reps = torch.cat([waves[:, :2], torch.randn(200, 30, generator=draw)], -1)
    change = kinds(200)[kind](reps, waves, torch.zeros(32), [2, 6])
    assert torch.allclose(change[:, :2], -waves[:, :2], atol=0.4)
    assert float(change[:, 2:].square().mean()) < 0.1


def drawn(dead):
    """Candidates of which some units are off, and what is wanted of them."""
    draws = torch.Generator().manual_seed(dead)
    waves = torch.randn(120, 15, generator=draws)
    reps = waves @ torch.randn(15, 40, generator=draws) + 0.3 * torch.randn(
        120, 40, generator=draws
    )
    reps[:, :dead] = 0
    wanted = torch.randn(40, generator=draws)
    wanted[:dead] = 0
    return reps, waves, wanted


def ridge(reps, waves, penalty):
    """Slopes of a ridge regression with a constant, in double precision."""
    near = reps - reps.mean(0)
    return torch.linalg.solve(
        near.T @ near + penalty * torch.eye(reps.shape[1]).double(),
        near.T @ (waves - waves.mean(0)),
    )


def one_by_one(reps, waves, wanted, sizes):
    """`leave_one_out` as described: a regression for each candidate, without it."""
    reps, waves, wanted = reps.double(), waves.double(), wanted.double()
    near, seen = reps - reps.mean(0), waves - waves.mean(0)
    unit = near.square().sum() / reps.shape[1]
    errors = torch.zeros(len(PENALTIES), len(sizes), dtype=torch.double)
    for number, penalty in enumerate(PENALTIES):
        onto = torch.linalg.solve(
            near.T @ near + (penalty * unit + 1e-9) * torch.eye(reps.shape[1]).double(), near.T
        )
        left = 1 - (1 + (near @ onto).trace()) / len(reps)
        missed = (seen - near @ onto @ seen).square().sum(0) / left**2
        errors[number] = torch.stack([part.sum() for part in missed.split(sizes)])
    best = errors.argmin(0).repeat_interleave(torch.tensor(sizes))
    out = torch.empty_like(waves)
    for own in range(len(reps)):
        rest = torch.arange(len(reps)) != own
        for number in best.unique().tolist():
            way = ridge(reps[rest], waves[rest], PENALTIES[number] * unit + 1e-9)
            out[own, best == number] = ((wanted - reps[own]) @ way)[best == number]
    return out.float()


def fold_by_fold(reps, waves, wanted, sizes, fold):
    """`without_fold` as described: a regression for each fold and penalty."""
    made, errors = torch.zeros(len(PENALTIES), *waves.shape, dtype=torch.double), 0
    reps, waves, wanted = reps.double(), waves.double(), wanted.double()
    for one in fold.unique():
        out = fold == one
        rep, wave = reps[~out].mean(0), waves[~out].mean(0)
        unit = (reps[~out] - rep).square().sum() / reps.shape[1]
        told = torch.zeros(len(PENALTIES), len(sizes), dtype=torch.double)
        for number, penalty in enumerate(PENALTIES):
            way = ridge(reps[~out], waves[~out], penalty * unit + 1e-12)
            made[number, out] = (wanted - reps[out]) @ way
            missed = (waves[out] - wave - (reps[out] - rep) @ way).square().sum(0)
            told[number] = torch.stack([part.sum() for part in missed.split(sizes)])
        errors = errors + told
    best = errors.argmin(0).repeat_interleave(torch.tensor(sizes))
    return made.gather(0, best.expand(1, len(reps), -1))[0].float()


@pytest.mark.parametrize("dead", [0, 12, 40])
def test_no_candidate_is_moved_by_a_map_that_learnt_from_it(dead):
    """Also with units that are off for all candidates, and with nothing but these."""
    reps, waves, wanted = drawn(dead)
    sizes, fold = [2, 4, 9], torch.arange(120) % 4
    found = leave_one_out(reps, waves, wanted, sizes)
    assert torch.allclose(found, one_by_one(reps, waves, wanted, sizes), atol=1e-3)
    assert dead < 40 or not bool(found.any())
    found = without_fold(reps, waves, wanted, sizes, fold)
    assert torch.allclose(found, fold_by_fold(reps, waves, wanted, sizes, fold), atol=2e-4)
    assert dead < 40 or not bool(found.any())


def test_fewer_candidates_than_values_are_moved_by_no_noise():
    """A regression that goes through every candidate would move them all to one image."""
    draw = torch.Generator().manual_seed(0)
    reps, waves = torch.randn(30, 200, generator=draw), torch.randn(30, 8, generator=draw)
    change = leave_one_out(reps, waves, torch.randn(200, generator=draw), [8])
    assert bool(change.isfinite().all()) and float(change.square().mean()) < 0.3


def test_few_candidates_of_wide_representations_are_moved_the_same_by_their_products(monkeypatch):
    """Some values are off for all of them, and two candidates are the same."""
    draw = torch.Generator().manual_seed(0)
    reps = (torch.randn(60, 40, generator=draw) @ torch.randn(40, 600, generator=draw)).relu()
    reps[:, :20], reps[1] = 0.5, reps[0]
    waves, wanted = torch.randn(60, 8, generator=draw), torch.randn(600, generator=draw).relu()
    by_products = leave_one_out(reps, waves, wanted, [3, 5])
    monkeypatch.setattr(kalman, "WIDE", 600)
    by_scatter = leave_one_out(reps, waves, wanted, [3, 5])
    assert not torch.equal(by_products, by_scatter)  # it was another way
    assert torch.allclose(by_products, by_scatter, atol=1e-3)


def test_a_regression_learns_what_a_share_of_a_linear_map_leaves():
    """Here all of it; of a map that says nothing, none."""
    reps, waves, wanted = drawn(12)
    sizes, draw = [2, 4, 9], torch.Generator().manual_seed(1)
    linear = ridge(reps.double(), waves.double(), 1e-3).float()
    found = leave_one_out(reps, waves, wanted, sizes, linear)
    rest = one_by_one(reps, waves - reps @ linear, wanted, sizes)
    assert torch.allclose(found, rest + (wanted - reps) @ linear, atol=1e-3)
    nothing = 5 * torch.randn(40, 15, generator=draw)
    without = leave_one_out(reps, waves, wanted, sizes)
    assert torch.equal(leave_one_out(reps, waves, wanted, sizes, nothing), without)
    assert not torch.allclose(found, without, atol=1e-3)


def test_with_a_linear_map_fewer_candidates_than_values_do():
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(600, 8, generator=draw) / 25
    reps, wanted = torch.randn(80, 600, generator=draw), torch.randn(600, generator=draw)
    waves = reps @ weight + 0.1 * torch.randn(80, 8, generator=draw)
    linear = weight + 0.3 * torch.randn(600, 8, generator=draw) / 25
    truth = (wanted - reps) @ weight
    errors = [
        float((leave_one_out(reps, waves, wanted, [3, 5], given) - truth).square().mean())
        for given in (None, linear)
    ]
    assert errors[1] < 0.3 * errors[0]


def test_a_representation_that_is_not_finite_spoils_every_candidate():
    waves = DctBands((1, 6, 6), 19.2, HERE)
    members = torch.rand(20, 1, 6, 6)
    found = kalman_update(
        members, lambda x: x.flatten(1) / 0, torch.zeros(36), waves, leave_one_out
    )
    assert bool(found.isnan().all())
