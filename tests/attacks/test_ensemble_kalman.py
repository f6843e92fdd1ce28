"""Candidates that are moved together, and the attack made of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.ensemble_kalman import EnsembleKalman
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.core.channels import Channel, Noise
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import KnownDefense
from fedre_privacy.data.base import datasets
from fedre_privacy.models.split import Normalise

BRIEF = {"views": 2, "members": 100, "steps": 2}


def psnr_db(images, truth):
    mse = (images - truth).square().flatten(1).mean(1)
    return float((-10 * mse.clamp(min=1e-12).log10()).mean())


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
    with pytest.raises(IncompatibleError, match="No gradient reaches the image"):
        DeepImagePrior(steps=60)(stairs)


def test_noise_for_an_upload_tells_nothing(problem, many):
    truth, draw = many[0][:16], torch.Generator().manual_seed(0)
    noise = moved(problem, lambda r: r[torch.randperm(8, generator=draw)].roll(1, 1))
    floor = psnr_db(problem.aux.mean(0).expand(16, -1, -1, -1), truth)
    assert psnr_db(EnsembleKalman(members=300)(noise).images, truth) < floor + 0.3


def test_what_no_image_sends_is_not_matched_by_noise(problem, monkeypatch):
    beyond = moved(problem, lambda r: r.mean(0) + 6 * (r - r.mean(0)))
    kept = EnsembleKalman(members=300)(beyond).images
    monkeypatch.setattr("fedre_privacy.attacks.ensemble_kalman.FAR", torch.inf)
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


def test_regressions_for_many_values_lean_on_the_linear_map(problem, many, monkeypatch):
    """Fewer candidates than values, once with it and once without."""
    assert EnsembleKalman().candidates == 600 and EnsembleKalman(members=40).candidates == 40
    truth, attack = many[0][:16], EnsembleKalman(members=30, views=2)
    alone = attack(problem).images
    monkeypatch.setattr("fedre_privacy.attacks.ensemble_kalman.WIDE", 40)
    leaning = attack(problem).images
    assert psnr_db(leaning, truth) > psnr_db(alone, truth) + 0.1


def test_too_few_images_are_one_error(problem):
    with pytest.raises(IncompatibleError, match="at least 8 auxiliary images; 3 were given"):
        EnsembleKalman(**BRIEF)(replace(problem, aux=problem.aux[:3], aux_labels=None))
