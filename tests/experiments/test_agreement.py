"""With truth at hand, what was uploaded is first held against what the module makes of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedre_privacy as fp
from fedre_privacy.eval.verdict import INCONCLUSIVE, LEAKS, NO_EVIDENCE, NOT_EXPLAINED

SHAPE = (3, 12, 12)
TOLD = "does not make the"
SEARCH = {"name": "pixel", "steps": 10}
COUNT = 8


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Smooth pictures; the first ones are the true ones."""
    rng = torch.Generator().manual_seed(0)
    coarse = torch.rand(COUNT + 30, 3, 4, 4, generator=rng)
    return F.interpolate(coarse, size=12, mode="bilinear").clamp(0, 1)


def module_of(seed: int = 0, width: int = 48, *, norm: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        middle = [nn.BatchNorm2d(4)] if norm else []
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1), *middle, nn.Tanh(), nn.Flatten(),
            nn.Linear(144, width),
        )  # fmt: skip
        if norm:
            net.train()(torch.rand(64, *SHAPE))
    return net.eval()


def upload_of(module: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return module(images)


def attack(module, rows, images, **more):
    return fp.attack_module(
        module, representations=rows, truth=images[:COUNT], public=images[COUNT:],
        **{"attack": SEARCH, "metrics": ("psnr",), "device": "cpu", **more},
    )  # fmt: skip


def by_imagenet(images: Tensor) -> Tensor:
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
    return (images - mean[:, None, None]) / deviation[:, None, None]


def trained(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).train()


MISMATCHES = {
    "ImageNet's mean": lambda m, x: upload_of(m, by_imagenet(x)),
    "[-1, 1]": lambda m, x: upload_of(m, 2 * x - 1),
    "0..255": lambda m, x: upload_of(m, 255 * x),
    "other": lambda m, x: upload_of(module_of(1, norm=True), x),
    "order of rows": lambda m, x: upload_of(m, x).flip(0),
    "batch norm in training mode": lambda m, x: upload_of(trained(m), x),
    "something was added": lambda m, x: upload_of(m, x) + torch.randn(COUNT, 48),
    "kind of upload": lambda m, x: upload_of(m, x).round(),
    "normalisation": lambda m, x: upload_of(m, (x - 0.2) / 0.05),
}


@pytest.mark.parametrize("cause", MISMATCHES)
def test_vectors_that_the_true_images_do_not_make(cause, images):
    module = module_of(norm=True)
    torch.manual_seed(0)
    found = attack(module, MISMATCHES[cause](module, images[:COUNT]), images)
    (note,) = [note for note in found.notes if TOLD in note]
    assert "representations from the true images" in note and cause in note
    assert found.verdict().startswith((NOT_EXPLAINED, LEAKS))
    assert note in str(found) and note[:-1] == found.trial.lines()["Truth"]
    if not found.verdict().startswith(LEAKS):
        assert note[:-1] in found.verdict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_vectors_that_they_make_are_no_cause_of_a_note(dtype, images):
    module = module_of(norm=True)
    rows = upload_of(module, images[:COUNT]).to(dtype).float()
    found = attack(module, rows, images)
    assert not [note for note in found.notes if TOLD in note]
    assert "makes the representations from the true images" in found.trial.lines()["Truth"]
    assert found.trial.agreement.own > 0.999


def test_a_weak_attack_on_the_right_module_keeps_its_verdict(images):
    """One that is nearer to the vectors than floors are, and far from the images."""
    module = module_of(width=16)
    rows = upload_of(module, images[:COUNT])
    found = attack(module, rows, images, attack={"name": "pixel", "steps": 100, "tv": 0.0})
    share = found.card.get("explained")
    assert share.value > 0.9 and share.over_interval[0] > 0
    assert found.card.verdict.word in (NO_EVIDENCE, INCONCLUSIVE)


def test_one_vector_is_held_against_a_public_image(images):
    module = module_of()
    rows = upload_of(module, 2 * images[:1] - 1)
    found = fp.attack_module(
        module, representations=rows, truth=images[:1], public=images[COUNT:], attack=SEARCH,
        metrics=("psnr",), device="cpu",
    )  # fmt: skip
    assert "[-1, 1]" in found.verdict() and found.card.verdict.word == "inconclusive"


def test_true_images_that_are_all_alike_are_no_cause_of_a_note(images):
    module, same = module_of(), images[:1].expand(COUNT, -1, -1, -1)
    rows = upload_of(module, same).half().float()
    found = fp.attack_module(
        module, representations=rows, truth=same, public=images[COUNT:], attack=SEARCH,
        metrics=("psnr",), device="cpu",
    )  # fmt: skip
    assert found.trial.agreement.agrees and not found.card.notes


def test_prototypes_are_means_over_all_their_images(images):
    module, classes = module_of(), torch.arange(COUNT) % 2
    reps = upload_of(module, images[:COUNT])
    rows = torch.stack([reps[classes == c].mean(0) for c in (0, 1)])

    def told(rows):
        found = fp.attack_module(
            module, prototypes=rows, labels=[0, 1], truth=images[:COUNT], truth_labels=classes,
            public=images[COUNT:], attack=SEARCH, metrics=("psnr",), device="cpu",
        )  # fmt: skip
        return found.trial.agreement

    assert told(rows).agrees
    assert told(rows.flip(0)).because.startswith("order of rows")
    assert not told(4 * rows).agrees  # sums in place of means


# --- gradients -----------------------------------------------------------------------------------


def gradient_of(module: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    slopes = torch.autograd.grad(F.cross_entropy(module(images), labels), [*module.parameters()])
    return dict(zip(dict(module.named_parameters()), slopes, strict=True))


def attack_gradient(module, gradient, images, *, count=1, labels=None, bn="eval"):
    return fp.attack_module(
        module, gradient=gradient, labels=labels, truth=images[:count], public=images[COUNT:],
        images=count, metrics=("psnr",), device="cpu",
        attack={"name": "inverting-gradients", "steps": 2, "bn": bn},
    )  # fmt: skip


LABELS = torch.tensor([3, 5, 7])
GRADIENTS = {
    "other weights": lambda m, x: gradient_of(module_of(1, 10, norm=True), x, LABELS),
    "[-1, 1]": lambda m, x: gradient_of(m, 2 * x - 1, LABELS),
    "0..255": lambda m, x: gradient_of(m, 255 * x, LABELS),
    "bn=batch": lambda m, x: gradient_of(trained(m), x, LABELS),
    "other labels": lambda m, x: gradient_of(m, x, (LABELS + 1) % 10),
}


@pytest.mark.parametrize("cause", GRADIENTS)
def test_a_gradient_that_the_true_images_do_not_make(cause, images):
    module = module_of(width=10, norm=True)
    gradient = GRADIENTS[cause](module, images[: len(LABELS)])
    found = attack_gradient(module, gradient, images, count=len(LABELS), labels=LABELS)
    (note,) = [note for note in found.notes if TOLD in note]
    assert "gradient from the true images" in note and cause in note
    assert note[:-1] in found.verdict() and NO_EVIDENCE not in found.verdict()


@pytest.mark.parametrize("bn", ["eval", "batch"])
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_a_gradient_that_they_make_is_no_cause_of_a_note(bn, loss, images):
    module, count = module_of(width=10, norm=True), len(LABELS)
    gradient = gradient_of(module if bn == "eval" else trained(module), images[:count], LABELS)
    scaled = {name: value * (count if loss == "sum" else 1) for name, value in gradient.items()}
    found = attack_gradient(module, scaled, images, count=count, labels=LABELS, bn=bn)
    assert found.trial.agreement.agrees and found.trial.agreement.own > 0.999
    assert not [note for note in found.notes if TOLD in note]
    assert found.card.get("explained").n == count


def test_the_class_of_one_image_is_read_off_where_nobody_says_it(images):
    module = module_of(width=10)
    right = gradient_of(module, images[:1], LABELS[:1])
    wrong = gradient_of(module_of(1, 10), images[:1], LABELS[:1])
    assert attack_gradient(module, right, images).trial.agreement.agrees
    assert not attack_gradient(module, wrong, images).trial.agreement.agrees


def test_of_several_images_of_unknown_classes_nothing_is_said(images):
    module = module_of(width=10)
    gradient = gradient_of(module, images[:3], LABELS)
    found = attack_gradient(module, gradient, images, count=3)
    assert found.trial.agreement is None and "Truth" not in found.trial.lines()
