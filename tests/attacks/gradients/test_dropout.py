"""Clients that train with dropout: its masks are simulated, and sought beside the images."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.attacks.gradients import signed_search
from fedre_privacy.attacks.gradients.dropout_masks import DropoutMask, place_masks
from fedre_privacy.attacks.gradients.matching import UpdateMatch, gradient
from fedre_privacy.attacks.gradients.objectives import cosine
from fedre_privacy.attacks.gradients.victims import Victim, victims_of
from fedre_privacy.attacks.update_inversion import LocalSteps
from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.rng import seeded_generators

CPU = torch.device("cpu")


def with_dropout(model, p=0.5):
    """A model that drops channels of its first layer and half of what its head is given."""
    backbone = model.extractor.backbone
    backbone.insert(1, nn.Dropout2d(0.2))
    backbone.append(nn.Dropout(p))
    return model.eval()


def hot(labels):
    return torch.nn.functional.one_hot(labels, 10).double()


def sent_in_training(model, images, labels, seed):
    """A gradient in training mode, and what each layer of dropout multiplied by."""
    twin, masks = copy.deepcopy(model).train().requires_grad_(), {}

    def note(name):
        def hook(_, given, made):
            masks[name] = made.detach() / given[0].detach()

        return hook

    for name, part in twin.named_modules():
        if isinstance(part, (nn.Dropout, nn.Dropout2d)):
            part.register_forward_hook(note(f"{name}.mask"))
    with seeded_generators(seed, "dropout"):
        loss = nn.functional.cross_entropy(twin(images), labels)
    names = [name for name, _ in twin.named_parameters()]
    slopes = torch.autograd.grad(loss, list(twin.parameters()))
    return dict(zip(names, slopes, strict=True)), masks


def test_the_true_masks_explain_a_gradient_in_training_mode(smooth, small):
    model, labels = with_dropout(smooth()).double(), torch.tensor([[0, 1], [2, 3]])
    images = small[:4].double().reshape(2, 2, 1, 8, 8)
    drawn = [sent_in_training(model, images[k], labels[k], k) for k in range(2)]
    people = [Victim(k, 1, model, sent, False) for k, (sent, _) in enumerate(drawn)]
    how = {"bn": "eval", "device": CPU, "dtype": torch.float64}
    off = UpdateMatch(people, gradient, cosine, **how)(images, hot(labels))
    match = UpdateMatch(people, gradient, cosine, dropout=(1, 2, 1, 8, 8), **how)
    torch.testing.assert_close(match(images, hot(labels)), off)  # masks begin as ones
    assert [one.most for one in match.beside] == [1.25, 2.0]
    for name, values in match.masks.items():
        for k, (_, masks) in enumerate(drawn):
            true = masks[name][..., :1, :1] if masks[name].dim() == 4 else masks[name]
            values.data[k] = true
    right = match(images, hot(labels))
    assert bool((right < 1e-10).all()) and bool((off > 0.01).all())
    torch.testing.assert_close(
        torch.stack([match._row(*match._pick_row(held_of(match, images, hot(labels)), k))
                     for k in range(2)]), right, atol=1e-12, rtol=0)  # fmt: skip


def held_of(match, images, labels):
    return (
        match.params, match.buffers, match.wanted, match.weights, match.running, match.place,
        match.masks, images, labels,
    )  # fmt: skip


@pytest.mark.parametrize("save_memory", [False, True])
def test_each_local_step_has_masks_of_its_own(smooth, small, save_memory):
    model, labels = with_dropout(smooth()).double(), torch.tensor([[0, 1, 2]])
    images, moved, drawn = small[None, :3].double(), copy.deepcopy(model), []
    for number, rows in enumerate(([0, 2], [1]) * 2):  # two passes over batches of 2 and 1
        slopes, masks = sent_in_training(moved, images[0, rows], labels[0, rows], number)
        drawn.append((rows, masks))
        with torch.no_grad():
            for name, value in moved.named_parameters():
                value -= 0.3 * slopes[name]
    before, after = (dict(one.named_parameters()) for one in (model, moved))
    sent = {name: before[name].detach() - after[name].detach() for name in before}
    match = UpdateMatch(
        [Victim(0, 1, model, sent, True)], LocalSteps(0.3, 2, 2, save_memory), cosine,
        bn="eval", dropout=(4, 2, 1, 8, 8), device=CPU, dtype=torch.float64,
    )  # fmt: skip
    match.one_by_one = save_memory
    off = match(images, hot(labels))
    for name, values in match.masks.items():
        for number, (rows, masks) in enumerate(drawn):
            true = masks[name][..., :1, :1] if masks[name].dim() == 4 else masks[name]
            values.data[0, number, : len(rows)] = true
    assert float(match(images, hot(labels)).detach()) < 1e-10 < 0.01 < float(off.detach())


def test_layers_of_dropout_that_act_twice_or_never_stay_as_they_are():
    twice = nn.Dropout(0.5)
    net = nn.Sequential(nn.Flatten(), twice, nn.Linear(4, 4), twice, nn.Dropout(0.0)).eval()
    assert place_masks(net, (2, 1, 2, 2)) == {} and net[1] is twice
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, 3)).eval()
    (mask,) = place_masks(net, (2, 1, 2, 2)).values()
    assert isinstance(net[1], DropoutMask) and net[1] is mask
    assert mask.mask.shape == (2, 4) and mask.most == 1.25


@pytest.mark.slow
def test_seeking_the_masks_brings_images_back(smooth, small, small_labels, watch, psnr):
    models = [with_dropout(smooth(k)) for k in range(4)]
    drawn = [
        sent_in_training(model, small[k : k + 1], small_labels[k : k + 1], k)[0]
        for k, model in enumerate(models)
    ]
    noise = [{name: torch.randn_like(value) for name, value in one.items()} for one in drawn]

    def over_floor(sent, dropout):
        found = attacks.get("inverting-gradients")(steps=200, bn="eval", dropout=dropout)(
            watch([GradientState(one) for one in sent], models)
        )
        return psnr(found.images, small[:4]) - psnr(small.mean(0).expand(4, 1, 8, 8), small[:4])

    off, masks, either = (over_floor(drawn, dropout) for dropout in ("off", "masks", "either"))
    blind = over_floor(noise, "masks")
    assert masks > off + 1 and masks > 2 and blind < 0
    assert either == masks


def test_a_short_search_tells_whether_a_client_dropped_anything(
    smooth, small, small_labels, gradient_of, watch
):
    model = with_dropout(smooth()).requires_grad_(False)
    sent = []
    for k in range(4):
        images, labels = small[k : k + 1], small_labels[k : k + 1]
        sent.append(GradientState(gradient_of(model, images, labels)))
        sent.append(GradientState(sent_in_training(model, images, labels, k)[0]))
    found = attacks.get("inverting-gradients")(steps=2, bn="eval", dropout="either")(
        watch(sent, model)
    )
    assert "masks of dropout sought (4 of 8 uploads)" in found.stopped_because


@pytest.mark.parametrize(("left", "told"), [((0.020, 0.012), "off"), ((0.40, 0.05), "masks")])
def test_masks_have_to_explain_most_of_what_is_left(
    left, told, smooth, small, small_labels, gradient_of, watch, monkeypatch
):
    model = with_dropout(smooth()).requires_grad_(False)
    observation = watch([GradientState(gradient_of(model, small[:1], small_labels[:1]))], model)
    fits = iter(left)  # without masks, then with them, which can explain more of any upload
    monkeypatch.setattr(
        signed_search, "signed_adam", lambda *a, **k: SimpleNamespace(fit=torch.tensor(next(fits)))
    )
    (found,) = signed_search.by_trial(
        victims_of(observation), [small_labels[:1]],
        lambda one: UpdateMatch(one, gradient, cosine, bn="eval", device=CPU),
        observation, Context(), bn="eval", dropout="either",
    )  # fmt: skip
    assert found.dropout == told
