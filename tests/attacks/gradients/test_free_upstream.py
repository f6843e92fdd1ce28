"""Inversion of updates whose loss is private."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.attacks.free_upstream import EXTRACTOR, FreeUpstream, pulled_back
from fedre_privacy.benchmarking.suite import default_suite
from fedre_privacy.core.artifacts import GradientState, SmallModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.runs.resolution import resolve_training

SEEN = Context(seed=3)


def private_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of a loss through a projector and a head that only the client knows."""
    rng = torch.Generator().manual_seed(7)
    projector = torch.randn(model.head.in_features, 40, generator=rng) / 10
    head = torch.randn(40, 10, generator=rng)
    params = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    inside = {n.removeprefix(EXTRACTOR): p for n, p in params.items() if n.startswith(EXTRACTOR)}
    reps = functional_call(model.extractor, inside, (images,))
    loss = F.cross_entropy(torch.tanh(reps @ projector) @ head, labels)
    loss = loss + F.cross_entropy(functional_call(model, params, (images,)), labels)
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


def test_the_right_upstream_gives_the_gradient_of_any_loss(smooth, small, small_labels):
    model, images, labels = smooth(), small[:3], small_labels[:3]
    params = {n: p.detach() for n, p in model.named_parameters()}
    buffers = dict(model.named_buffers())
    reps = model.extractor(images).detach().requires_grad_()
    loss = F.cross_entropy(model.head(reps), labels) + reps.pow(3).sum()
    (upstream,) = torch.autograd.grad(loss, reps)
    found = pulled_back(model, params, buffers, images, upstream)
    free = {n: p.clone().requires_grad_() for n, p in params.items() if n.startswith(EXTRACTOR)}
    inside = {n.removeprefix(EXTRACTOR): p for n, p in free.items()}
    reps = functional_call(model.extractor, inside, (images,))
    whole = F.cross_entropy(model.head(reps), labels) + reps.pow(3).sum()
    wanted = dict(zip(free, torch.autograd.grad(whole, list(free.values())), strict=True))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)


def error(images: Tensor, truth: Tensor) -> float:
    return float((images - truth).square().mean())


def test_an_image_behind_a_private_loss_is_found_and_noise_is_not(
    dense, small, small_labels, watch
):
    model, truth = dense(), small[:3]
    sent = [private_gradient(model, truth[i : i + 1], small_labels[i : i + 1]) for i in range(3)]
    attack = FreeUpstream(steps=300, bn="eval")
    found = attack(watch([GradientState(g) for g in sent], model), SEEN)
    floor = error(small[60:].mean(0).expand_as(truth), truth)
    assert error(found.images, truth) < floor / 4
    assert len(found.labels) == 0  # which image has which label is not told
    rng = torch.Generator().manual_seed(0)
    noise = [{n: torch.randn(v.shape, generator=rng) * v.std() for n, v in g.items()} for g in sent]
    lost = attack(watch([GradientState(g) for g in noise], model), SEEN)
    assert error(lost.images, truth) > floor
    assert error(found.images.roll(1, 0), truth) > floor  # answers to other uploads


def test_it_sees_only_the_extractor(smooth, small, small_labels, watch):
    """A head's part of the upload changes nothing: nobody knows what it was trained on."""
    model = smooth()
    sent = private_gradient(model, small[:2], small_labels[:2])
    other = {n: v if n.startswith(EXTRACTOR) else torch.randn_like(v) for n, v in sent.items()}
    attack = FreeUpstream(steps=3, bn="eval", restarts=2)
    one, two = (attack(watch([GradientState(g)], model, size=2), SEEN) for g in (sent, other))
    assert torch.equal(one.images, two.images)


def test_after_local_training_a_place_on_the_path_is_sought(smooth, small, small_labels, watch):
    model = smooth()
    after = {n: p.detach().clone() for n, p in model.named_parameters()}
    for _ in range(3):
        moved = smooth()
        moved.load_state_dict(after, strict=False)
        slopes = private_gradient(moved, small[:1], small_labels[:1])
        after = {n: p - 0.05 * slopes[n] for n, p in after.items()}
    attack = FreeUpstream(steps=300, bn="eval")
    found = attack(watch([SmallModelState(after)], model), SEEN)
    floor = error(small[60:].mean(0)[None], small[:1])
    assert error(found.images, small[:1]) < floor / 2


def test_a_model_that_has_no_extractor_is_refused(small, watch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)
    zeros = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    with pytest.raises(IncompatibleError, match="a model's `extractor`") as refusal:
        FreeUpstream(steps=1)(watch([GradientState(zeros)], model))
    assert "update-inversion" in str(refusal.value)


@pytest.mark.parametrize("protocol", ["fedmrl", "fml", "fedapen"])
def test_the_suite_of_shared_small_models_holds_it(protocol):
    training = resolve_training({"protocol": {"name": protocol}}, {}, [])
    names = [entry["attack"]["name"] for entry in default_suite(training)]
    assert "free-upstream" in names
    assert not attacks.get("free-upstream").simulates
    assert ("update-inversion" in names) == (protocol != "fedmrl")
