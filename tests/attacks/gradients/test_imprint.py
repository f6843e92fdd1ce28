"""What servers prepared is read: imprinted bins exactly, fished images by a search, noise never."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.active_server.base import ServerKnowledge, ServerView, steerings
from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.gradients.victims import Victim
from fedre_privacy.attacks.imprint import read_layers
from fedre_privacy.core.artifacts import GradientState, LowRankChange, ModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.models.adapters import AdaptedBackbone, AdapterForm, Bottleneck, LowRank
from fedre_privacy.models.hidden import (
    HiddenLayer,
    imprintable,
    imprintable_together,
    passed_on,
)
from fedre_privacy.models.split import SplitModel, load_parameters
from fedre_privacy.protocols.fedkd import pack


def steered(name, model, aux, uploads=(), broadcasts=(), **settings):
    """A model as a malicious server sends it, which knows public images and no client."""
    held = ServerKnowledge(aux, torch.arange(len(aux)) % 10, lambda client: copy.deepcopy(model))
    sent = ModelState({k: p.detach().clone() for k, p in model.named_parameters()})
    view = ServerView(tuple(uploads), tuple(broadcasts), 1, 10, held)
    (made,) = steerings.get(name)(**settings).steer(view, 1, 0, (sent,), stream(0, "steering"))
    out = copy.deepcopy(model)
    load_parameters(out, made.params)
    return out.eval().requires_grad_(False)


def errors(found, wanted):
    """Largest error of each image found against the nearest of those wanted."""
    return (found[:, None] - wanted[None]).abs().flatten(2).amax(2).amin(1)


@pytest.mark.parametrize("directions", [1, 2])
def test_images_alone_in_a_bin_are_exact(
    dense, small, small_labels, gradient_of, watch, directions
):
    model = steered("imprint", dense(), small[60:], directions=directions)
    sent = gradient_of(model, small[:16], small_labels[:16])
    found = attacks.get("imprint")()(watch([GradientState(sent)], model, size=16, threat="strong"))
    right = errors(small[:16], found.images) < 1e-3
    assert float(right.float().mean()) >= 0.8
    sure = found.images[found.certified]
    assert bool(len(sure)) == (directions > 1)  # one direction has no second view
    assert bool((errors(sure, small[:16]) < 1e-3).all())


def test_an_honest_layer_gives_the_same_attack_nothing(
    dense, small, small_labels, gradient_of, watch
):
    model = dense()
    sent = GradientState(gradient_of(model, small[:16], small_labels[:16]))
    with pytest.raises(IncompatibleError, match="has rows of its own for each unit"):
        attacks.get("imprint")()(watch([sent], model, size=16, threat="strong"))


def test_noise_for_an_imprinted_gradient_tells_nothing(
    dense, small, small_labels, gradient_of, watch, psnr
):
    model, mine = steered("imprint", dense(), small[60:]), small[:16]
    sent = gradient_of(model, mine, small_labels[:16])
    rng = stream(0, "noise")
    noise = {k: v.std() * torch.randn(v.shape, generator=rng) for k, v in sent.items()}
    attack = attacks.get("imprint")()
    good, bad = (
        attack(watch([GradientState(one)], model, size=16, threat="strong"))
        for one in (sent, noise)
    )

    def best(images):  # the nearest answer for each image, as generous as a matching can be
        gaps = (mine[:, None] - images[None]).square().flatten(2).mean(2).amin(1)
        return float((-10 * gaps.clamp(min=1e-6).log10()).mean())

    floor = psnr(small[60:].mean(0).expand_as(mine), mine)
    assert not bool(bad.certified.any()) and bool(good.certified.any())
    assert best(bad.images) < floor < floor + 10 < best(good.images)


def test_several_local_steps_are_read_too(dense, small, small_labels, trained, watch, psnr):
    model, mine = steered("imprint", dense(), small[60:]), small[:16]
    after = ModelState(trained(model, mine, small_labels[:16], 0.06, 5))
    found = attacks.get("imprint")()(watch([after], model, size=16, threat="strong"))
    gaps = (mine[:, None] - found.images[None]).square().flatten(2).mean(2).amin(1)
    floor = psnr(small[60:].mean(0).expand_as(mine), mine)
    assert float((-10 * gaps.clamp(min=1e-6).log10()).mean()) > floor + 5


def test_factors_that_keep_all_tell_images_and_those_of_95_percent_do_not(
    dense, small, small_labels, trained, watch, psnr
):
    model, mine = steered("imprint", dense(), small[60:]), small[:16]
    before = dict(model.named_parameters())
    after = trained(model, mine, small_labels[:16], 0.06, 1)
    change = {name: after[name] - before[name].detach() for name in before}
    floor, gains = psnr(small[60:].mean(0).expand_as(mine), mine), []
    for energy in (1.0, 0.95):
        sent = LowRankChange(pack(change, energy))
        found = attacks.get("imprint")()(watch([sent], model, size=16, threat="strong"))
        gaps = (mine[:, None] - found.images[None]).square().flatten(2).mean(2).amin(1)
        gains.append(float((-10 * gaps.clamp(min=1e-6).log10()).mean()) - floor)
    assert gains[0] > 10 and gains[1] < gains[0] - 5, gains


def batch_with_one(labels, wanted):
    """Numbers of eight samples, the first of which is the only one of its class."""
    others = (labels != wanted).nonzero().flatten()[:7]
    return torch.cat([(labels == wanted).nonzero().flatten()[:1], others])


def fished(model, sent, watch, **settings):
    seen = watch([GradientState(sent)], model, size=1, threat="strong")
    return attacks.get("fishing")(steps=300, lr=0.05, **settings)(seen)


def test_the_only_image_of_a_class_is_fished_and_noise_is_not(
    smooth, small, small_labels, gradient_of, watch, psnr
):
    gains, kept = [], []
    for label in (2, 5, 8):
        model = steered("fishing", smooth(label), small[60:], label=label)
        rows = batch_with_one(small_labels[:60], label)
        sent = gradient_of(model, small[rows], small_labels[rows])
        alone = gradient_of(model, small[rows[:1]], small_labels[rows[:1]])
        name = "extractor.backbone.0.weight"
        kept.append(float(torch.cosine_similarity(sent[name].flatten(), alone[name].flatten(), 0)))
        rng = stream(label, "noise")
        noise = {k: v.std() * torch.randn(v.shape, generator=rng) for k, v in sent.items()}
        floor = psnr(small[60:].mean(0)[None], small[rows[:1]])
        gains.append([psnr(fished(model, one, watch).images, small[rows[:1]]) - floor
                      for one in (sent, noise)])  # fmt: skip
    good, bad = torch.tensor(gains).mean(0).tolist()
    assert min(kept) > 0.99  # of the batch's gradient that sample has nearly all
    assert good > 3 and bad < 0.5, (good, bad)


def test_of_a_batch_without_the_class_one_sample_dominates(
    smooth, small, small_labels, gradient_of
):
    name, shares = "extractor.backbone.0.weight", {}
    for kind, given in (("fished", True), ("honest", False)):
        model = steered("fishing", smooth(), small[60:], label=9) if given else smooth()
        rows = (small_labels[:60] != 9).nonzero().flatten()[:8]
        norms = torch.stack([
            gradient_of(model, small[i : i + 1], small_labels[i : i + 1])[name].norm()
            for i in rows.tolist()
        ])  # fmt: skip
        shares[kind] = float(norms.max() / norms.sum())
    assert shares["fished"] > 0.8 > 0.4 > shares["honest"]


def test_a_head_that_nobody_fished_with_is_refused(smooth, small, small_labels, gradient_of, watch):
    sent = gradient_of(smooth(), small[:4], small_labels[:4])
    with pytest.raises(IncompatibleError, match="needs a head of one row; what client 0 was sent"):
        fished(smooth(), sent, watch)


def test_models_without_a_layer_to_imprint_are_named_and_so_is_why(smooth):
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.extractor = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False), nn.ReLU())

    lacks = steerings.get("imprint")().lacks
    assert lacks(smooth()) == "has no linear layer in its extractor"
    assert lacks(Bare()) == "has no bias in layer 'extractor.1'"
    assert steerings.get("fishing")(label=3).lacks(smooth()) == ""
    assert "10 classes; 'steering.label' 12" in steerings.get("fishing")(label=12).lacks(smooth())
    assert "no extractor with a head" in steerings.get("fishing")().lacks(nn.Linear(2, 2))


# --- bottleneck adapters --------------------------------------------------------------------------


def adapted_net(side, rank=16, adapters=1):
    """Frozen convolutions, the first of `side` pixels, each with a bottleneck adapter behind it."""
    rng, parts = stream(5, "block"), []
    for number in range(adapters):
        block = nn.Conv2d(48, 48, 1) if number else nn.Conv2d(1, 48, side, stride=side)
        for name in ("weight", "bias"):
            value = torch.randn(getattr(block, name).shape, generator=rng) / 4
            delattr(block, name)
            block.register_buffer(name, value, persistent=False)
        parts.append(Bottleneck(nn.Sequential(block, nn.ReLU()), 48, AdapterForm(rank=rank)))
        with torch.no_grad():
            for value in parts[-1].parameters():
                value.copy_(torch.randn(value.shape, generator=rng) / 8)
    backbone = AdaptedBackbone(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    model = SplitModel(backbone, nn.Identity(), dim=48, num_classes=10)
    with torch.no_grad():
        model.head.weight.copy_(torch.randn(model.head.weight.shape, generator=rng) / 8)
    return model.eval().requires_grad_(False)


def vectors_read(model, sent, images):
    """Shares of the vectors read and of the true ones that are the same to 1 %."""
    hidden = imprintable(model)
    assert isinstance(hidden, HiddenLayer)
    found = read_layers(Victim(0, 1, model, sent, local=False), (1, 8, 8), 0.01).inputs
    true = hidden.inputs(images)
    near = torch.cdist(found, true) < 0.01 * true.norm(dim=1)
    return len(found), int(near.any(0).sum()), len(true)


@pytest.mark.parametrize("side", [8, 4])
def test_vectors_alone_in_a_bin_of_an_adapter_are_exact_and_noise_gives_none(
    small, small_labels, gradient_of, side
):
    mine, labels = small[:12], small_labels[:12]
    model = steered("imprint", adapted_net(side), small[60:], directions=1, samples=12)
    sent = gradient_of(model, mine, labels)
    read, right, count = vectors_read(model, sent, mine)
    assert count == 12 * (8 // side) ** 2 and read <= 16
    assert right >= 4  # of 16 bins with a vector in each on average 6 hold just one
    rng = stream(0, "noise")
    noise = {k: v.std() * torch.randn(v.shape, generator=rng) for k, v in sent.items()}
    assert vectors_read(model, noise, mine)[1] == 0
    assert vectors_read(model, sent, small[12:24])[1] == 0  # another client's


def test_what_two_adapters_give_alike_is_certain(small, small_labels, gradient_of):
    mine, image = small[:12], torch.zeros(1, 1, 8, 8)
    model = steered("imprint", adapted_net(8, adapters=3), small[60:], directions=1, samples=12)
    layers = imprintable_together(model, image)
    assert len(layers) == 3 and layers[-1].name == imprintable(model).name
    fed = passed_on(layers[0].inputs(mine), layers[0], layers[-1], image)
    torch.testing.assert_close(fed, layers[-1].inputs(mine), rtol=1e-4, atol=1e-4)
    sent = gradient_of(model, mine, small_labels[:12])
    found = read_layers(Victim(0, 1, model, sent, local=False), (1, 8, 8), 0.01)
    true = layers[-1].inputs(mine)
    near = torch.cdist(found.inputs, true) < 0.01 * true.norm(dim=1)
    assert int(found.certified.sum()) >= 3 and bool(near.any(1)[found.certified].all())
    assert bool((near.sum(0) <= 1).all())  # each once
    single = steered("imprint", adapted_net(8), small[60:], directions=1, samples=12)
    alone = vectors_read(single, gradient_of(single, mine, small_labels[:12]), mine)
    assert int(near.any(0).sum()) > alone[1]


def test_images_come_from_adapters_by_public_images(small, small_labels, gradient_of, watch, psnr):
    model = steered("imprint", adapted_net(8, 32), small[40:], directions=1, samples=8)
    mine, attack = small[:8], attacks.get("imprint")()
    sent = gradient_of(model, mine, small_labels[:8])

    def best(params):
        seen = watch([GradientState(params)], model, size=8, threat="strong")
        seen = replace(seen, aux=small[40:], aux_labels=small_labels[40:])
        found = attack(seen).images
        gaps = (mine[:, None] - found[None]).square().flatten(2).mean(2).amin(1)
        return float((-10 * gaps.clamp(min=1e-6).log10()).mean())

    rng = stream(0, "noise")
    noise = {k: v.std() * torch.randn(v.shape, generator=rng) for k, v in sent.items()}
    floor = psnr(small[40:].mean(0).expand_as(mine), mine)
    assert best(sent) > floor + 3 > floor > best(noise)
    seen = watch([GradientState(sent)], model, size=8, threat="strong")
    own, others = (attack.explained(seen, x, small_labels[:8]) for x in (mine, small[8:16]))
    assert float(own.min()) > 0.999 > float(others.max())


def test_low_rank_adapters_have_no_bins():
    layer = LowRank(nn.Linear(48, 48), AdapterForm(rank=4))
    model = SplitModel(
        AdaptedBackbone(nn.Sequential(nn.Flatten(), layer)), nn.Identity(), dim=48, num_classes=10
    )
    assert "of low rank" in steerings.get("imprint")().lacks(model)
