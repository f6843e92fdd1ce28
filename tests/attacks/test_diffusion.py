"""Learnt denoisers, images drawn given a representation, and the attack made of both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.diffusion import Diffusion
from fedre_privacy.attacks.inversion.denoiser import Denoiser, DenoiserTraining, train_denoiser
from fedre_privacy.attacks.inversion.posterior_sampling import (
    Sampling,
    correct_to_target,
    sample_posterior,
)
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.core.channels import Channel, ClippingStep, Noise
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.types import KnownDefense
from fedre_privacy.data.base import datasets
from fedre_privacy.models.split import Normalise

SHAPE = (2, 6, 5)
BRIEF = {"updates": 6, "width": 4, "layers": 2, "views": 1, "steps": 4, "samples": 2}


def psnr_db(images, truth):
    mse = (images - truth).square().flatten(1).mean(1)
    return float((-10 * mse.clamp(min=1e-12).log10()).mean())


def gaussian_images(count, seed=0):
    """Images of a smooth Gaussian process that both channels share in part."""
    draw = torch.Generator().manual_seed(seed)
    waves = torch.randn(count, *SHAPE, generator=draw)
    down, right = torch.arange(6.0)[:, None], torch.arange(5.0)[None]
    waves[:, 1] = 0.6 * waves[:, 0] + 0.8 * waves[:, 1]
    net = Denoiser(SHAPE, 2, 2)
    return 0.5 + 0.3 * torch.einsum(
        "ih,ncij,jw->nchw", net.rows, waves / (1 + down**2 + right**2), net.columns
    )


@pytest.fixture(scope="module")
def linear():
    """A denoiser without a trained network, with the variances of many Gaussian images."""
    net = Denoiser(SHAPE, 2, 2)
    net.fit_linear(gaussian_images(4000))
    return net.eval().requires_grad_(False)


def matrix_of(net, size):
    """The covariance that `left` applies, as a matrix."""
    unit = torch.eye(60).reshape(60, *SHAPE)
    return net.left(unit, torch.full((60,), size)).reshape(60, 60)


def test_the_linear_part_is_the_best_linear_denoiser(linear):
    seen = gaussian_images(3000, seed=1)
    flat = gaussian_images(20000, seed=2).flatten(1)
    mean, covariance = flat.mean(0), torch.cov(flat.T)
    size = 0.2
    noise = size * torch.randn(seen.shape, generator=torch.Generator().manual_seed(3))
    noisy = (seen + noise).flatten(1)
    best = (noisy - mean) @ torch.linalg.solve(
        covariance + size**2 * torch.eye(60), covariance
    ) + mean
    made = linear(noisy.reshape(seen.shape), torch.full((3000,), size)).flatten(1)
    error, least = ((x - seen.flatten(1)).square().mean() for x in (made, best))
    assert float(error) < 1.05 * float(least)
    assert float(least) < 0.3 * float(noise.square().mean())


def test_how_unlikely_an_image_is_falls_towards_what_the_linear_part_makes_of_it(linear):
    size, images = 0.2, gaussian_images(3, seed=4).requires_grad_()
    told = linear.unlikelihood(images, size)
    (slope,) = torch.autograd.grad(told.sum(), images)
    away = (images - linear.linear(images, torch.full((3,), size))) / size**2
    assert torch.allclose(60 * slope, away, rtol=1e-3, atol=1e-4)
    flat = (images - linear.mean).flatten(1)
    whole = matrix_of(linear, 1e4) + size**2 * torch.eye(60)
    exact = (flat * torch.linalg.solve(whole, flat.T).T).sum(1) / 120
    assert torch.allclose(told, exact, rtol=1e-3)
    rough = linear.mean + (images - linear.mean)[..., torch.tensor([0, 4, 1, 3, 2])]
    assert bool((linear.unlikelihood(rough, 0.05) > linear.unlikelihood(images, 0.05)).all())


def test_what_noise_leaves_open_is_the_covariance_given_it(linear):
    size = 0.2
    whole = matrix_of(linear, 1e4)  # so much noise leaves the images' own covariance
    left = whole - whole @ torch.linalg.solve(whole + size**2 * torch.eye(60), whole)
    assert torch.allclose(matrix_of(linear, size), left, atol=1e-5)


def test_a_correction_is_the_mean_given_a_linear_representation(linear):
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(60, 12, generator=draw)
    clean, wanted = gaussian_images(3), torch.randn(3, 12, generator=draw)
    allowed, size = torch.tensor([0.01, 0.1, 1.0]), torch.full((3,), 0.3)
    moved = correct_to_target(
        linear, lambda x: x.flatten(1) @ weight, wanted, allowed, clean, size, 40
    )
    left = matrix_of(linear, 0.3)
    for row in range(3):
        seen = weight.T @ left @ weight + allowed[row] * torch.eye(12)
        missing = wanted[row] - clean[row].flatten() @ weight
        expected = clean[row].flatten() + left @ weight @ torch.linalg.solve(seen, missing)
        assert torch.allclose(moved[row].flatten(), expected, atol=2e-3)


def test_training_improves_on_the_linear_part_where_images_are_not_gaussian():
    data = datasets.get("digits")(size=16, per_class=40).load()
    images = data.images.float() / 255
    learnt, kept = images[::2], images[1::2]
    losses = []
    how = DenoiserTraining(width=16, layers=3, updates=150)
    net = train_denoiser(learnt, how, seed=0, purpose="x", tick=lambda n, loss: losses.append(loss))
    noise = torch.full((len(kept),), 0.4)
    draw = torch.Generator().manual_seed(1)
    noisy = kept + 0.4 * torch.randn(kept.shape, generator=draw)
    assert psnr_db(net(noisy, noise), kept) > psnr_db(net.linear(noisy, noise), kept) + 0.5
    assert float(losses[-1]) < float(losses[0])
    again = train_denoiser(learnt, how, seed=0, purpose="x", tick=lambda n, loss: None)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_samples_differ_where_the_upload_leaves_room_and_match_it(linear):
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(60, 12, generator=draw)
    truth = gaussian_images(1, seed=5).clamp(0, 1)
    wanted = (truth.flatten(1) @ weight).expand(6, -1)
    start = linear.mean.expand(6, -1, -1, -1)

    def extract(x):
        return x.flatten(1) @ weight

    made, trace = sample_posterior(
        linear, extract, wanted, torch.zeros(6), start, Sampling(steps=12, solves=12),
        seeds=range(6), tick=lambda step, errors: None,
    )  # fmt: skip
    assert trace.shape == (12, 6) and bool((trace[-1] < 1e-3).all())
    spread = made.var(0).sum()
    assert float(spread) > 1e-3
    mean_error = (made.mean(0, keepdim=True) - truth).square().sum()
    assert float(mean_error) < float((made - truth).square().flatten(1).sum(1).mean())


# --- the attack --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    data = datasets.get("digits")(size=16, per_class=40).load()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    return data.images[order].float() / 255, data.labels[order]


@pytest.fixture
def problem(many, observe):
    images, labels = many
    nets = {}
    for seed, owner in enumerate([(0, 1), (2, 1)]):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            nets[owner] = (
                nn.Sequential(
                    Normalise(), nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                    nn.Linear(288, 48), nn.ReLU(),
                ).eval().requires_grad_(False)
            )  # fmt: skip
    reps = [net(images[8 * i : 8 * i + 8]) for i, net in enumerate(nets.values())]
    seen = observe(reps, nets, threat="strong")
    return replace(seen, aux=images[16:], aux_labels=labels[16:])


def moved(problem, change):
    targets = tuple(
        replace(u, artifacts=(replace(u.artifacts[0], reps=change(u.artifacts[0].reps)),))
        for u in problem.targets
    )
    return replace(problem, targets=targets, uploads=targets)


@pytest.mark.slow
def test_it_beats_the_linear_answer_and_a_mean_beats_a_sample(problem, many):
    truth = many[0][:16]
    how = {"updates": 400, "width": 24, "layers": 4, "steps": 20}
    mean = Diffusion(**how, samples=4)(problem)
    score = psnr_db(mean.images, truth)
    floor = psnr_db(problem.aux.mean(0).expand(16, -1, -1, -1), truth)
    assert score > floor + 3
    assert score > psnr_db(LinearDecoder()(problem).images, truth) + 0.3
    assert score > psnr_db(Diffusion(**how, samples=1)(problem).images, truth) + 0.2
    assert mean.spread.shape == (16,) and bool((mean.spread > 0).all())
    assert float(mean.trace[-1].median()) < 0.5 * float(mean.trace[0].median())


def test_noise_for_an_upload_tells_nothing(problem, many):
    truth, draw = many[0][:16], torch.Generator().manual_seed(0)
    noise = moved(problem, lambda r: r[torch.randperm(8, generator=draw)].roll(1, 1))
    floor = psnr_db(problem.aux.mean(0).expand(16, -1, -1, -1), truth)
    found = Diffusion(updates=60, width=8, layers=3, steps=8, samples=2)(noise)
    assert psnr_db(found.images, truth) < floor + 0.3


def test_declared_noise_is_allowed_for(problem, many):
    truth, draw = many[0][:16], torch.Generator().manual_seed(0)
    std = 0.3 * float(problem.targets[0].artifacts[0].reps.std())
    noisy = moved(problem, lambda r: r + std * torch.randn(r.shape, generator=draw))
    told = replace(noisy, defenses=(KnownDefense("noise", {}, Channel(rows=(Noise(std),))),))
    how = {"updates": 100, "width": 8, "layers": 3, "steps": 10, "samples": 2}
    aware, unaware = (Diffusion(**how)(one) for one in (told, noisy))
    assert psnr_db(aware.images, truth) > psnr_db(unaware.images, truth) + 2
    sent = noisy.targets[0].artifacts[0].reps
    noise = float((std**2 * sent.shape[1] / sent.square().sum(1)).median())
    assert 0.5 * noise < float(aware.fit.median()) < 2 * noise  # neither the noise nor too little


def test_what_was_never_sent_was_not_bounded(problem):
    bounded = KnownDefense("bound", {}, Channel(rows=(ClippingStep(0.1),)))
    other = (replace(problem.uploads[0], artifacts=()),)
    plain = Diffusion(**BRIEF)(replace(problem, uploads=other))
    told = Diffusion(**BRIEF)(replace(problem, uploads=other, defenses=(bounded,)))
    assert torch.equal(told.images, plain.images)


def test_a_broken_extractor_harms_no_other(problem):
    net = problem.extractors[0, 1]
    net[5].weight.fill_(torch.nan)
    found = Diffusion(**BRIEF)(problem)
    assert found.diverged.tolist() == [True] * 8 + [False] * 8
    assert bool(found.images[8:].isfinite().all())


class Attends(nn.Module):
    """Attention among the rows of an image, as in a vision transformer."""

    def forward(self, images):
        rows = images.squeeze(1)[:, None]
        return nn.functional.scaled_dot_product_attention(rows, rows, rows).flatten(1)


def test_extractors_with_attention_are_read(problem, observe):
    torch.manual_seed(0)  # of the layer's weights
    truth = problem.aux[:4]
    net = nn.Sequential(Attends(), nn.Linear(256, 48)).eval().requires_grad_(False)
    seen = observe([net(truth)], {(0, 1): net}, threat="strong")
    found = Diffusion(**BRIEF)(
        replace(seen, aux=problem.aux[4:], aux_labels=problem.aux_labels[4:])
    )
    assert float(found.trace[-1].median()) < 0.5 * float(found.trace[0].median())


def test_bad_settings_and_too_few_images_are_one_error(problem):
    with pytest.raises(ConfigError, match="noise has to fall"):
        Diffusion(noisiest=0.1, cleanest=0.2)
    with pytest.raises(IncompatibleError, match="at least 8 auxiliary images; 3 were given"):
        Diffusion(**BRIEF)(replace(problem, aux=problem.aux[:3], aux_labels=None))


def test_a_finished_model_is_not_trained_again(problem):
    class Box(dict):
        def load(self, name):
            return self.get(name)

        def save(self, name, tensors):
            self[name] = tensors

    whole, reported = Box(), []
    first = Diffusion(**BRIEF)(problem, Context(cache=whole))
    kept = Box({name: whole[name] for name in whole if not name.startswith("drawn")})
    assert {"first-single", "denoiser-single"} == set(kept)
    again = Diffusion(**BRIEF)(problem, Context(cache=kept, report=reported.append))
    assert torch.equal(again.images, first.images) and set(kept) == set(whole)
    assert {event.data["of"] for event in reported} == {BRIEF["steps"]}
