"""What servers prepared is read: imprinted bins exactly, fished images by a search, noise never."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedre_privacy.active_server.base import ServerKnowledge, ServerView, steerings
from fedre_privacy.attacks.base import attacks
from fedre_privacy.core.artifacts import GradientState, LowRankChange, ModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.models.split import load_parameters
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
