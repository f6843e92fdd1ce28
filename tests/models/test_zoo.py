from __future__ import annotations

from functools import partial

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.models import (
    FAMILIES,
    architectures,
    assemble,
    build_model,
    count_parameters,
    num_parameters,
)
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.models.zoo import vit
from fedre_privacy.models.zoo.base import set_channels

NAMES = (
    "cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5", "cnn4", "googlenet", "mobilenet-v2", "resnet10",
    "resnet101", "resnet152", "resnet18", "resnet34", "resnet4", "resnet50", "resnet6", "resnet8",
    "vit-b-16", "vit-b-32",
)  # fmt: skip
NATIVE = {
    "cnn-1": 500, "cnn-2": 500, "cnn-3": 500, "cnn-4": 500, "cnn-5": 500, "cnn4": 512,
    "googlenet": 1024, "mobilenet-v2": 1280, "resnet4": 64, "resnet6": 128, "resnet8": 256,
    "resnet10": 512, "resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet101": 2048,
    "resnet152": 2048, "vit-b-16": 768, "vit-b-32": 768,
}  # fmt: skip
SLOW = ("resnet101", "resnet152", "vit-b-32")
LARGE = ("resnet34", "resnet50", "resnet101", "resnet152", "vit-b-16", "vit-b-32")
CIFAR, TINY, FASHION = (3, 32, 32), (3, 64, 64), (1, 28, 28)


def on_meta(name, image_shape=CIFAR, num_classes=10, **options):
    with torch.device("meta"):
        return assemble(architectures.get(name)(**options), image_shape, num_classes)


def test_registered_names():
    published = {n for n in architectures.names() if architectures.get(n).pretrained}
    assert sorted(set(architectures.names()) - published) == sorted(NAMES)


# --- parameter counts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image_shape", "num_classes", "base", "head", "total"),
    [
        (CIFAR, 10, 873_408, 5_130, 878_538),
        (CIFAR, 100, 873_408, 51_300, 924_708),
        (TINY, 200, 5_592_000, 102_600, 5_694_600),
    ],
)
def test_four_layer_cnn(image_shape, num_classes, base, head, total):
    counts = count_parameters("cnn4", image_shape, num_classes)
    assert counts == {"base": base, "head": head, "total": total}


@pytest.mark.parametrize(
    ("image_shape", "flat"),
    [(CIFAR, 1600), (TINY, 10816), (FASHION, 1024), ((3, 16, 16), 64), ((3, 32, 48), 2880)],
)
def test_four_layer_cnn_flattens_any_size(image_shape, flat):
    convolutions = 25 * image_shape[0] * 32 + 32 + 51_264
    assert count_parameters("cnn4", image_shape, 10)["base"] == convolutions + flat * 512 + 512


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "base_32", "base_64"),
    [
        (0, 873_408, 5_592_000),
        (1, 5_599_904, 5_599_904),
        (2, 2_223_872, 2_223_872),
        (3, 11_176_512, 11_176_512),
        (4, 21_284_672, 21_284_672),
        (5, 23_508_032, 23_508_032),
        (6, 42_500_160, 42_500_160),
        (7, 58_143_808, 58_143_808),
        (8, 85_651_200, 85_660_416),
        (9, 87_418_368, 87_420_672),
    ],
)
def test_heterogeneous_ten(client, base_32, base_64):
    at_32 = count_parameters("het10", CIFAR, 10, client=client)
    at_64 = count_parameters("het10", TINY, 200, client=client)
    assert at_32 == {"base": base_32, "head": 5_130, "total": base_32 + 5_130}
    assert at_64 == {"base": base_64, "head": 102_600, "total": base_64 + 102_600}


def test_a_trained_mapping_belongs_to_the_extractor():
    counts = count_parameters("resnet50", CIFAR, 10, 512, "fc")
    assert counts["base"] == 23_508_032 + 2048 * 512 + 512
    assert counts["head"] == 5_130


@pytest.mark.parametrize(
    ("name", "ten", "hundred", "fashion"),
    [
        ("cnn-1", 2_621_558, 2_666_648, 122_400),
        ("cnn-2", 1_815_142, 1_860_232, 85_300),
        ("cnn-3", 1_320_558, 1_365_648, 66_750),
        ("cnn-4", 1_060_358, 1_105_448, 48_200),
        ("cnn-5", 670_058, 715_148, 29_650),
    ],
)
def test_five_cnns(name, ten, hundred, fashion):
    assert count_parameters(name, CIFAR, 10)["total"] == ten
    assert count_parameters(name, CIFAR, 100)["total"] == hundred
    assert count_parameters(name, FASHION, 10)["total"] == fashion


@pytest.mark.parametrize(
    ("width", "total"),
    [(100, 465_658), (128, 479_966), (150, 491_208), (250, 542_308), (500, 670_058)],
)
def test_small_model_of_fedmrl(width, total):
    model = on_meta("cnn-5", width=width)
    assert model.dim == width
    assert num_parameters(model) == total


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("resnet4", 83_520), ("resnet6", 313_664), ("resnet8", 1_232_704), ("resnet10", 4_905_792),
    ],
)  # fmt: skip
def test_small_resnets(name, base):
    assert count_parameters(name, CIFAR, 100)["base"] == base


def test_counting_allocates_nothing_and_draws_nothing():
    state = torch.get_rng_state()
    assert all(p.is_meta for p in on_meta("vit-b-16").parameters())
    count_parameters("resnets", (3, 48, 48), 10)
    assert torch.equal(torch.get_rng_state(), state)


# --- running them ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "channels"),
    [pytest.param(n, 3, marks=[pytest.mark.slow] if n in SLOW else []) for n in NAMES]
    + [(name, 1) for name in NAMES if name not in LARGE],
)
def test_forward(name, channels):
    with seeded_generators(0, "test"):
        model = build_model(ModelSettings(name=name), 0, (channels, 32, 32), 7).eval()
        images = torch.rand(2, channels, 32, 32)
    assert model.dim == NATIVE[name]
    with torch.no_grad():
        representations, logits = model.extractor(images), model(images)
    assert representations.shape == (2, NATIVE[name])
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()
    assert torch.equal(logits, model.head(representations))
    assert not torch.allclose(representations[0], representations[1], atol=0, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "image_shape"),
    [
        ("resnet101", CIFAR), ("resnet152", (1, 32, 32)), ("vit-b-16", (1, 32, 32)),
        ("vit-b-32", (1, 64, 64)), ("vit-b-16", TINY),
    ],
)  # fmt: skip
def test_shapes_of_the_large_nets(name, image_shape):
    model = on_meta(name, image_shape)
    images = torch.rand(2, *image_shape, device="meta")
    assert model.extractor(images).shape == (2, NATIVE[name])
    assert model(images).shape == (2, 10)


@pytest.mark.parametrize("name", ["cnn4", "cnn-5", "resnet4", "resnet18", "googlenet"])
def test_forward_of_grey_28(name):
    model = build_model(ModelSettings(name=name), 0, FASHION, 10).eval()
    assert model(torch.rand(2, *FASHION)).shape == (2, 10)


@pytest.mark.parametrize("name", ["cnn4", "resnet8", "googlenet", "mobilenet-v2"])
def test_forward_of_oblong_images(name):
    model = build_model(ModelSettings(name=name), 0, (3, 32, 40), 10).eval()
    assert model(torch.rand(2, 3, 32, 40)).shape == (2, 10)


@pytest.mark.parametrize("name", ["googlenet", "mobilenet-v2"])
def test_dropout_stays_in_the_extractor(name):
    model = build_model(ModelSettings(name=name), 0, CIFAR, 10)
    rates = [m.p for m in model.extractor.modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.2]
    images = torch.rand(4, *CIFAR)
    assert not torch.equal(model.extractor(images), model.extractor(images))


TORCHVISION = {
    "resnet10": lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=1),
    "resnet18": partial(torchvision.models.resnet18, weights=None, num_classes=1),
    "resnet50": partial(torchvision.models.resnet50, weights=None, num_classes=1),
    "mobilenet-v2": partial(torchvision.models.mobilenet_v2, weights=None, num_classes=1),
    "googlenet": partial(
        torchvision.models.googlenet,
        weights=None,
        num_classes=1,
        aux_logits=False,
        init_weights=True,
    ),
}


@pytest.mark.parametrize("name", list(TORCHVISION))
def test_same_features_as_torchvision(name):
    with seeded_generators(0, "test"):
        theirs = TORCHVISION[name]().eval()
    for attribute in ("fc", "classifier"):
        if hasattr(theirs, attribute):
            setattr(theirs, attribute, nn.Identity())
    with seeded_generators(0, "test"):
        ours = architectures.get(name)().build(CIFAR)[0].eval()
    images = torch.rand(2, *CIFAR) * 2 - 1
    with torch.no_grad():
        features = ours(images)
        assert features.std() > 0
        assert torch.allclose(features, theirs(images), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["cnn4", "cnn-5", "resnet10", "mobilenet-v2", "googlenet"])
def test_nothing_is_written_in_place(name):
    model = build_model(ModelSettings(name=name), 0, CIFAR, 10)
    assert not any(getattr(module, "inplace", False) for module in model.modules())
    reached = []
    for module in model.modules():
        # a hooked output is a view that autograd refuses to see overwritten
        module.register_full_backward_hook(lambda *_: reached.append(1))
    model(torch.rand(2, *CIFAR, requires_grad=True)).sum().backward()
    assert len(reached) > 5
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "fan"), [("resnet4", 49 * 64), ("mobilenet-v2", 9 * 32)]
)  # fmt: skip
def test_grey_first_convolution_is_initialised_like_the_published_one(name, fan):
    backbone = architectures.get(name)().build((1, 32, 32))[0]
    first = next(m for m in backbone.modules() if isinstance(m, nn.Conv2d))
    assert first.in_channels == 1
    assert first.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.15)


def test_grey_patch_projection_is_initialised_like_the_published_one():
    projection = nn.Conv2d(3, 768, 16, 16)
    set_channels(projection, 1, vit._initialise)
    assert projection.weight.shape == (768, 1, 16, 16)
    assert projection.weight.std().item() == pytest.approx(1 / 16, rel=0.05)


def test_small_stem_keeps_larger_maps():
    small = architectures.get("resnet18")(stem="small").build(CIFAR)[0].eval()
    published = architectures.get("resnet18")().build(CIFAR)[0].eval()
    images = torch.rand(1, *CIFAR)
    assert small[:-2](images).shape == (1, 512, 4, 4)
    assert published[:-2](images).shape == (1, 512, 1, 1)
    assert num_parameters(small) == 11_168_832


def test_unknown_stem():
    with pytest.raises(ConfigError, match="Unknown stem 'smal'. Did you mean 'small'?"):
        architectures.get("resnet18")(stem="smal")


# --- image sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "image_shape", "needs"),
    [
        ("cnn4", (3, 15, 32), "images of at least 16x16 pixels"),
        ("cnn-3", (1, 8, 8), "images of at least 16x16 pixels"),
        ("googlenet", (3, 14, 14), "images of at least 15x15 pixels"),
        (
            "vit-b-16",
            (1, 28, 28),
            "square images whose side is a multiple of 16 pixels, at least 16x16",
        ),
        (
            "vit-b-32",
            (3, 32, 64),
            "square images whose side is a multiple of 32 pixels, at least 32x32",
        ),
    ],
)
def test_images_that_do_not_fit(name, image_shape, needs):
    with pytest.raises(IncompatibleError) as caught:
        count_parameters(name, image_shape, 10)
    given = "x".join(map(str, image_shape))
    assert str(caught.value) == (
        f"Architecture '{name}' was given images of {given} (C x H x W); it needs {needs}.\n"
        "Resize or pad the images, or choose another architecture."
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FAMILIES["het10"][4:]])
def test_least_size_really_runs(name):
    side = architectures.get(name).min_size
    model = build_model(ModelSettings(name=name), 0, (3, side, side), 10).eval()
    assert model(torch.rand(1, 3, side, side)).shape == (1, 10)
