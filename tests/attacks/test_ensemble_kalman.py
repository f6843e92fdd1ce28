"""Candidates that are moved together, and the attack made of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.ensemble_kalman import EnsembleKalman
from fedre_privacy.attacks.inversion.ensemble import PENALTIES, Waves, changes
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.core.channels import Channel, Noise
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import KnownDefense
from fedre_privacy.data.base import datasets
from fedre_privacy.models.split import Normalise

BRIEF = {"views": 2, "members": 100, "steps": 2}
HERE = torch.device("cpu")


def psnr_db(images, truth):
    mse = (images - truth).square().flatten(1).mean(1)
    return float((-10 * mse.clamp(min=1e-12).log10()).mean())


# --- moves -------------------------------------------------------------------------------------


def test_coefficients_up_to_all_frequencies_are_the_image():
    images = torch.rand(3, 2, 6, 5)
    waves = Waves((2, 6, 5), 9.0, HERE)
    assert torch.allclose(waves.images(waves.of(images)), images, atol=1e-5)
    low = Waves((2, 6, 5), 2.0, HERE)
    kept = low.images(low.of(images))
    assert low.of(images).shape[1] < 60
    assert torch.allclose(low.images(low.of(kept)), kept, atol=1e-5)
    assert torch.allclose(kept.mean((2, 3)), images.mean((2, 3)), atol=1e-5)


def test_bands_rise_with_frequency_whatever_the_size():
    for side in (8, 16, 64):
        band = Waves((1, side, side), 19.2, HERE).band
        along = band[: min(side, 20)]
        assert bool((along.diff() >= 0).all()) and int(along[0]) < int(along[1]) < int(along[-1])


def test_candidates_come_to_the_mean_given_a_linear_representation():
    draw = torch.Generator().manual_seed(0)
    spread = torch.tensor([3.0, 2.0, 1.0, 1.0, 0.5, 0.1])
    weight = torch.randn(6, 3, generator=draw)
    waves = torch.randn(4000, 6, generator=draw) * spread
    wanted = (torch.randn(6, generator=draw) * spread) @ weight
    moved = waves + changes(
        waves @ weight, waves, wanted, torch.arange(6) // 2, torch.arange(4000) % 4
    )
    prior = torch.diag(spread.square())
    gain = torch.linalg.solve(weight.T @ prior @ weight, weight.T @ prior)
    assert torch.allclose(moved.mean(0), wanted @ gain, atol=0.1)
    assert torch.allclose(torch.cov(moved.T), prior - prior @ weight @ gain, atol=0.3)


def plainly(reps, waves, wanted, band, fold):
    """`changes` as described: a ridge regression for each fold and penalty, in double precision."""
    moved, errors = torch.zeros(len(PENALTIES), *waves.shape, dtype=torch.double), 0
    reps, waves, wanted = reps.double(), waves.double(), wanted.double()
    for one in fold.unique():
        out = fold == one
        rep, wave = reps[~out].mean(0), waves[~out].mean(0)
        near, seen = reps[~out] - rep, reps[out] - rep
        for number, penalty in enumerate(PENALTIES):
            ridge = (penalty * near.square().sum() / reps.shape[1] + 1e-12) * torch.eye(len(wanted))
            way = torch.linalg.solve(near.T @ near + ridge, near.T @ (waves[~out] - wave))
            moved[number, out] = (wanted - reps[out]) @ way
            missed = (waves[out] - wave - seen @ way).square().sum(0)
            told = torch.zeros(len(PENALTIES), int(band.max()) + 1, dtype=torch.double)
            told[number].index_add_(0, band, missed)
            errors = errors + told
    best = errors.argmin(0)[band]
    return moved.gather(0, best.expand(1, len(reps), -1))[0].float()


@pytest.mark.parametrize("dead", [0, 12, 40])
def test_changes_are_those_of_ridge_regressions_without_the_fold(dead):
    """Also with units that are off for all candidates, and with nothing but these."""
    draws = torch.Generator().manual_seed(dead)
    waves = torch.randn(120, 15, generator=draws)
    reps = waves @ torch.randn(15, 40, generator=draws) + 0.3 * torch.randn(
        120, 40, generator=draws
    )
    reps[:, :dead] = 0
    wanted, fold = torch.randn(40, generator=draws), torch.arange(120) % 4
    wanted[:dead] = 0
    band = torch.arange(15) % 3
    found = changes(reps, waves, wanted, band, fold)
    assert torch.allclose(found, plainly(reps, waves, wanted, band, fold), atol=2e-4)
    assert dead < 40 or not bool(found.any())


def test_what_a_representation_does_not_tell_is_not_moved():
    draw = torch.Generator().manual_seed(0)
    waves = torch.randn(200, 8, generator=draw)
    reps = torch.cat([waves[:, :2], torch.randn(200, 30, generator=draw)], -1)
    band = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])
    change = changes(reps, waves, torch.zeros(32), band, torch.arange(200) % 4)
    assert torch.allclose(change[:, :2], -waves[:, :2], atol=0.4)
    assert float(change[:, 2:].square().mean()) < 0.1


# --- the attack --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    data = datasets.get("digits")(size=16, per_class=40).load()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    return data.images[order].float() / 255, data.labels[order]


class Stairs(nn.Module):
    """Values rounded to steps: the slope is 0 everywhere."""

    def forward(self, x):
        return (x / 0.05).round() * 0.05


def nets(*last):
    """Deep extractors of two clients."""
    made = {}
    for seed, owner in enumerate([(0, 1), (2, 1)]):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made[owner] = (
                nn.Sequential(
                    Normalise(), nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                    nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                    nn.Linear(64, 48), nn.ReLU(), *last,
                ).eval().requires_grad_(False)
            )  # fmt: skip
    return made


def problem_of(many, observe, extractors):
    images, labels = many
    reps = [net(images[8 * i : 8 * i + 8]) for i, net in enumerate(extractors.values())]
    seen = observe(reps, extractors, threat="strong")
    return replace(seen, aux=images[16:], aux_labels=labels[16:])


@pytest.fixture
def problem(many, observe):
    return problem_of(many, observe, nets())


def moved(problem, change):
    targets = tuple(
        replace(u, artifacts=(replace(u.artifacts[0], reps=change(u.artifacts[0].reps)),))
        for u in problem.targets
    )
    return replace(problem, targets=targets, uploads=targets)


def rough(images):
    return float((images - nn.functional.avg_pool2d(images, 3, 1, 1)).square().mean())


def test_it_beats_the_linear_answer_and_the_floor(problem, many):
    truth = many[0][:16]
    found = EnsembleKalman(members=600)(problem)
    score = psnr_db(found.images, truth)
    assert score > psnr_db(problem.aux.mean(0).expand(16, -1, -1, -1), truth) + 3
    assert score > psnr_db(LinearDecoder()(problem).images, truth) + 0.5
    assert found.spread.shape == (16,) and bool((found.spread > 0).all())
    assert float(found.trace[-1].median()) < 0.5 * float(found.trace[1].median())


def test_an_extractor_without_slopes_is_inverted(many, observe):
    stairs, truth = problem_of(many, observe, nets(Stairs())), many[0][:16]
    floor = psnr_db(stairs.aux.mean(0).expand(16, -1, -1, -1), truth)
    assert psnr_db(EnsembleKalman(members=600)(stairs).images, truth) > floor + 2
    assert psnr_db(DeepImagePrior(steps=60)(stairs).images, truth) < floor + 1


def test_noise_for_an_upload_tells_nothing(problem, many):
    truth, draw = many[0][:16], torch.Generator().manual_seed(0)
    noise = moved(problem, lambda r: r[torch.randperm(8, generator=draw)].roll(1, 1))
    floor = psnr_db(problem.aux.mean(0).expand(16, -1, -1, -1), truth)
    assert psnr_db(EnsembleKalman(members=300)(noise).images, truth) < floor + 0.3


def test_what_no_image_sends_is_not_matched_by_noise(problem, monkeypatch):
    beyond = moved(problem, lambda r: r.mean(0) + 6 * (r - r.mean(0)))
    kept = EnsembleKalman(members=300)(beyond).images
    monkeypatch.setattr("fedre_privacy.attacks.inversion.ensemble.FAR", torch.inf)
    free = EnsembleKalman(members=300)(beyond).images
    assert rough(kept) < 0.6 * rough(free)


def test_declared_noise_is_allowed_for(problem, many):
    truth, draw = many[0][:16], torch.Generator().manual_seed(0)
    std = 0.3 * float(problem.targets[0].artifacts[0].reps.std())
    noisy = moved(problem, lambda r: r + std * torch.randn(r.shape, generator=draw))
    told = replace(noisy, defenses=(KnownDefense("noise", {}, Channel(rows=(Noise(std),))),))
    aware, unaware = (EnsembleKalman(members=300)(one) for one in (told, noisy))
    assert psnr_db(aware.images, truth) > psnr_db(unaware.images, truth) + 0.5


def test_a_broken_extractor_harms_no_other(problem):
    problem.extractors[0, 1][5].weight.fill_(torch.nan)
    found = EnsembleKalman(**BRIEF)(problem)
    assert found.diverged.tolist() == [True] * 8 + [False] * 8
    assert bool(found.images[8:].isfinite().all())


def test_there_are_no_more_candidates_than_versions_of_images(problem):
    few = replace(problem, aux=problem.aux[:40], aux_labels=problem.aux_labels[:40])
    all_of_them = EnsembleKalman(views=2, members=80, steps=1)(few)
    assert torch.equal(
        EnsembleKalman(views=2, members=900, steps=1)(few).images, all_of_them.images
    )


def test_too_few_images_are_one_error(problem):
    with pytest.raises(IncompatibleError, match="at least 8 auxiliary images; 3 were given"):
        EnsembleKalman(**BRIEF)(replace(problem, aux=problem.aux[:3], aux_labels=None))
