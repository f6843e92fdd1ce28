"""Attacks by maps on large images: low frequencies are written, and enlarged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.decoder import AmortisedDecoder
from fedre_privacy.attacks.diffusion import Diffusion
from fedre_privacy.attacks.ensemble_kalman import EnsembleKalman
from fedre_privacy.attacks.inversion.auxiliary_images import LOW, WHOLE, AuxImages, Resolution
from fedre_privacy.attacks.inversion.simulated_uploads import views
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.data.base import datasets

SIDE, SMALL = 32, 8
ATTACKS = {
    "linear": LinearDecoder(resolution=SMALL, views=2),
    "decoder": AmortisedDecoder(resolution=SMALL, views=2, stages=1, updates=12, width=4),
    "ensemble-kalman": EnsembleKalman(resolution=SMALL, views=4, members=100, steps=1),
    "diffusion": Diffusion(
        resolution=SMALL, views=2, width=4, layers=2, updates=12, steps=4, samples=1
    ),
}


class Coarse(nn.Module):
    """Means over 4 x 4 pixels, turned."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
        self.turn = nn.Parameter(torch.linalg.qr(drawn).Q)

    def forward(self, images):
        return F.avg_pool2d(images, 4).flatten(1) @ self.turn


@pytest.fixture(scope="module")
def many():
    """200 digits of 32 pixels a side, shuffled."""
    data = datasets.get("digits")(size=SIDE, per_class=20).load()
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    return data.images[order].float() / 255


@pytest.fixture
def problem(many, observe):
    net = Coarse()
    with torch.no_grad():
        seen = observe([net(many[:5])], {(0, 1): net}, threat="strong")
    shape = (1, SIDE, SIDE)
    return replace(seen, image_shape=shape, aux=many[5:], aux_labels=None)


def error(images, truth):
    return float((images - truth).square().mean())


@pytest.mark.parametrize("name", ATTACKS)
def test_low_frequencies_are_found_and_enlarged(problem, many, name):
    found = ATTACKS[name](problem, Context(seed=1))
    assert found.images.shape == found.prior.shape == (5, 1, SIDE, SIDE)
    floor = error(problem.aux.mean(0), many[:5])
    assert error(found.images, many[:5]) < 0.8 * floor
    drawn = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    noise = replace(problem.targets[0].artifacts[0], reps=drawn)
    blind = replace(problem, targets=(replace(problem.targets[0], artifacts=(noise,)),))
    assert error(ATTACKS[name](blind, Context(seed=1)).images, many[:5]) > floor


def test_a_linear_answer_is_the_enlarged_mean_over_areas(problem, many):
    found = LinearDecoder(resolution=SMALL, views=1, penalty=1e-8)(problem)
    size = Resolution.of((1, SIDE, SIDE), SMALL)
    assert torch.allclose(found.images, size.enlarge(size.reduce(many[:5])), atol=1e-3)


def test_only_images_of_more_than_128_pixels_are_written_small_unless_asked():
    assert Resolution.of((3, WHOLE, WHOLE)).whole and Resolution.of((3, 32, 32), 64).whole
    assert Resolution.of((3, 224, 224)).picture == (LOW, LOW)
    assert Resolution.of((3, 224, 160)).picture == (LOW, 46)
    assert Resolution.of((3, 224, 224), 224).whole
    images = torch.rand(2, 3, WHOLE, WHOLE)
    same = Resolution.of((3, WHOLE, WHOLE))
    assert same.reduce(images) is images and same.enlarge(images) is images


def test_moved_large_images_and_moved_pictures_are_the_same():
    """A sixteenth of 224 pixels is four of 64, which are cut from the same places."""
    images = torch.rand(2, 1, 224, 224, generator=torch.Generator().manual_seed(0))
    size = Resolution.of((1, 224, 224))
    for large, small in zip(views(images, 6), views(size.reduce(images), 6), strict=True):
        inner = (size.reduce(large) - small)[..., 5:-5, 5:-5]
        assert float(inner.abs().max()) < 1e-6


def test_representations_in_parts_are_those_of_the_whole(many):
    aux, net = AuxImages(many, Resolution((SIDE, SIDE), (SMALL, SMALL))), Coarse()
    whole = AuxImages(many, Resolution((SIDE, SIDE), (SIDE, SIDE)))
    rng = torch.Generator()
    ones, others = aux.representations(net, 3, rng), whole.representations(net, 3, rng)
    for one, other in zip(ones, others, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert aux.pictures.shape == (200, 1, SMALL, SMALL)
