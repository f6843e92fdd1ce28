"""Batches taken apart: certified answers are right, and nothing wrong is certified."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.attacks.spear import decompose_gradient, draws_needed
from fedre_privacy.core.artifacts import GradientState, ModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.models.split import Normalise, SplitModel
from fedre_privacy.threats.base import threats


def errors(found, wanted):
    """Largest error of each image found against the nearest of those wanted."""
    return (found[:, None] - wanted[None]).abs().flatten(2).amax(2).amin(1)


def noisy(sent, share, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {k: v + share * v.std() * torch.randn(v.shape, generator=rng) for k, v in sent.items()}


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_whole_batches_are_exact_and_say_so(dense, small, small_labels, gradient_of, watch, size):
    batches = [torch.arange(size) + size * k for k in range(4)]
    nets = [dense(seed=k) for k in range(4)]
    sent = [
        gradient_of(net, small[rows], small_labels[rows])
        for net, rows in zip(nets, batches, strict=True)
    ]
    found = attacks.get("spear")()(watch([GradientState(g) for g in sent], nets, size=size))
    wanted = small[torch.cat(batches)]
    assert bool(found.certified.all()) and float(errors(found.images, wanted).max()) < 1e-3
    assert float(errors(wanted, found.images).max()) < 1e-3  # each image, not one of them often


def test_noise_and_wrong_weights_get_no_certificate(dense, small, small_labels, gradient_of, watch):
    model, attack = dense(), attacks.get("spear")()
    sent = gradient_of(model, small[:4], small_labels[:4])
    noise = {k: torch.randn_like(v) for k, v in sent.items()}
    low = {k: v.clone() for k, v in sent.items()}
    inner = "extractor.backbone.1"
    low[f"{inner}.weight"] = torch.randn(256, 4) @ torch.randn(4, 64)  # the rank, and nothing else
    low[f"{inner}.bias"] = low[f"{inner}.weight"] @ torch.randn(64)
    tried = [noise, low, noisy(sent, 0.01), noisy(sent, 1.0)]
    found = attack(watch([GradientState(g) for g in tried], model, size=4))
    assert not bool(found.certified.any()) and bool((found.images == 0.5).all())
    other = attack(watch([GradientState(sent)], dense(seed=5), size=4))
    assert not bool(other.certified.any())
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted.extractor.backbone[1].bias += 0.1  # a wrong bias alone
    wrong = attack(watch([GradientState(sent)], shifted, size=4))
    assert not bool(wrong.certified.any()) and bool(
        attack(watch([GradientState(sent)], model, size=4)).certified.all()
    )


def test_over_many_batches_certified_means_right(dense, small, small_labels, gradient_of, watch):
    """30 batches of 3 to 6 images, a third of them noised a little: none is certified wrongly."""
    sent, nets, wanted = [], [], []
    for k in range(30):
        rows = torch.randperm(len(small), generator=torch.Generator().manual_seed(k))[: 3 + k % 4]
        net = dense(seed=k % 7, width=128)
        one = gradient_of(net, small[rows], small_labels[rows])
        sent.append(GradientState(noisy(one, 10.0 ** (-2 - k % 5), k) if k % 3 == 0 else one))
        nets.append(net)
        wanted.append(small[rows])
    found = attacks.get("spear")()(watch(sent, nets, size=6))
    given, images = found.certified.reshape(30, 6), found.images.reshape(30, 6, 1, 8, 8)
    wrong = sum(
        int((errors(images[k][given[k]], wanted[k]) > 1e-3).sum())
        for k in range(30)
        if bool(given[k].any())
    )
    assert wrong == 0
    clean = torch.tensor([k % 3 != 0 for k in range(30)])
    asked = sum(len(wanted[k]) for k in range(30) if clean[k])
    assert int(given[clean].sum()) > 0.75 * asked


def test_fourteen_images_come_whole_and_the_same_again(dense, small, small_labels, gradient_of):
    net = dense(seed=3, width=512)
    mine, name = small[20:34], "extractor.backbone.1"
    sent = gradient_of(net, mine, small_labels[20:34])
    layer, parts = net.extractor.backbone[1], (sent[f"{name}.weight"], sent[f"{name}.bias"])
    found, again, other = (
        decompose_gradient(
            layer,
            *parts,
            torch.Generator().manual_seed(0),
            most=16,
            tries=32768,
            following=following,
        )
        for following in (net.head.weight, net.head.weight, torch.randn(10, 512))
    )
    wanted = net.extractor.normalise(mine).flatten(1)
    assert found.rank == 14 and bool(found.certified.all())
    assert float(errors(found.inputs, wanted).max()) < 1e-3
    assert float(errors(wanted, found.inputs).max()) < 1e-3
    assert torch.equal(found.inputs, again.inputs)
    right = errors(other.inputs, wanted) < 1e-3  # wrong weights behind it certify nothing wrong
    assert bool(right[other.certified].all())


def test_the_chance_is_stated_beforehand():
    """Twice the draws for each further sample where half of the units are off, and more."""
    assert draws_needed(1, 0.5) == 3  # ln 20
    assert 46_000 < draws_needed(14, 0.5) < 46_300 and draws_needed(14, 0.7) < 600
    rng, rank, off = torch.Generator().manual_seed(0), 4, 0.6
    draws = draws_needed(rank, off)
    hit = (torch.rand(2000, draws, rank, rank - 1, generator=rng) < off).all(3).any(1).all(1)
    assert 0.93 < float(hit.double().mean()) < 0.99


def test_inputs_behind_convolutions_are_exact(digits, gradient_of, watch, psnr):
    images, labels = digits.images[:40].float() / 255, digits.labels[:40].long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(
            nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 128), nn.ReLU()
        )
        model = SplitModel(body, nn.Identity(), dim=128, num_classes=10, normalise=Normalise())
    model, mine = model.eval().requires_grad_(False), images[:3]
    sent = gradient_of(model, mine, labels[:3])
    layer, name = model.extractor.backbone[3], "extractor.backbone.3"
    rng = torch.Generator().manual_seed(0)
    found = decompose_gradient(
        layer, sent[f"{name}.weight"], sent[f"{name}.bias"], rng, most=8, tries=8192
    )
    true = model.extractor.backbone[:3](model.extractor.normalise(mine))
    gaps = (found.inputs[:, None] - true[None]).abs().amax(2).amin(1)
    assert bool(found.certified.all()) and float(gaps.max()) < 1e-3 * float(true.abs().max())
    observation = watch([GradientState(sent)], model, size=3, shape=(1, 16, 16))
    answers = attacks.get("spear")()(observation, Context(seed=0))
    assert not bool(answers.certified.any())  # of images; the inputs are told in words
    assert answers.stopped_because.startswith("3 of 3 inputs")
    error = (answers.images[:, None] - mine[None]).square().flatten(2).mean(2).amin(1)
    best = psnr(images[3:].mean(0).expand(3, 1, 16, 16), mine)
    assert float((-10 * error.log10()).mean()) > best + 6
    public = replace(observation, threat=threats.get("strong"), aux=images[3:])
    usual, named = (
        attacks.get("spear")(**how)(public, Context(seed=0)).images
        for how in ({}, {"by": "ensemble-kalman"})
    )
    assert torch.equal(usual, named) and not torch.equal(usual, answers.images)
    error = (usual[:, None] - mine[None]).square().flatten(2).mean(2).amin(1)
    assert float((-10 * error.log10()).mean()) > best + 3


def test_one_step_of_training_is_a_gradient_and_more_steps_are_none(
    dense, small, small_labels, trained, watch
):
    model = dense()
    once, thrice = (trained(model, small[:4], small_labels[:4], 0.5, n) for n in (1, 3))
    found = attacks.get("spear")()(watch([ModelState(once), ModelState(thrice)], model, size=4))
    right = errors(found.images, small[:4]) < 1e-3
    assert bool(found.certified[:4].all()) and bool(right[found.certified].all())


def test_models_without_such_a_layer_are_refused(smooth, small, gradient_of, watch):
    sent = gradient_of(smooth(), small[:1], torch.tensor([0]))
    with pytest.raises(IncompatibleError, match="has no linear layer in its extractor"):
        attacks.get("spear")()(watch([GradientState(sent)], smooth()))
