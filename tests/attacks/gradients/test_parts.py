"""Parts of models: what was not sent stays as it was, and labels come from what was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.gradients.matching import UpdateMatch
from fedre_privacy.attacks.gradients.objectives import l2rel
from fedre_privacy.attacks.gradients.reconstruction import probes, simulated_counts
from fedre_privacy.attacks.gradients.victims import Victim, victims_of
from fedre_privacy.attacks.update_inversion import LocalSteps
from fedre_privacy.core.artifacts import GradientState, ModelChange, ModelState
from fedre_privacy.core.errors import IncompatibleError

STEM, HEAD = "extractor.backbone.0", "head"


def some_trained(model, images, labels, kept, steps=3, lr=0.1):
    """Parameters of a name that `kept` takes, after SGD on these alone."""
    moved = copy.deepcopy(model)
    own = {name: p.requires_grad_() for name, p in moved.named_parameters() if kept(name)}
    for _ in range(steps):
        slopes = torch.autograd.grad(F.cross_entropy(moved(images), labels), list(own.values()))
        with torch.no_grad():
            for parameter, slope in zip(own.values(), slopes, strict=True):
                parameter -= lr * slope
    return {name: parameter.detach().clone() for name, parameter in own.items()}


def mismatch(victim, images, labels):
    """Of the true images, with the client's own steps."""
    match = UpdateMatch(
        [victim], LocalSteps(0.1, 3, 1), l2rel, bn="eval", device=torch.device("cpu")
    )
    return float(match(images[None], F.one_hot(labels, 10).float()[None]))


@pytest.mark.parametrize("part", [STEM, HEAD])
@pytest.mark.parametrize("kind", [ModelState, ModelChange])
def test_what_was_not_sent_is_not_trained_and_not_compared(
    smooth, small, small_labels, watch, part, kind
):
    model, images, labels = smooth(), small[:2], small_labels[:2]
    sent = some_trained(model, images, labels, lambda name: not name.startswith(part))
    own = dict(model.named_parameters())
    if kind is ModelChange:
        sent = {name: value - own[name] for name, value in sent.items()}
    (victim,) = victims_of(watch([kind(sent)], model, size=2))
    assert victim.upload.keys() == sent.keys()
    assert mismatch(victim, images, labels) < 1e-6
    # as a whole state, the frozen part is compared with a training that never was
    zeros = {name: torch.zeros_like(value) for name, value in own.items()}
    whole = Victim(0, 1, model, {**zeros, **victim.upload}, local=True)
    assert mismatch(whole, images, labels) > 1e-3


def test_an_upload_without_any_parameter_of_the_model_is_refused(smooth, watch):
    with pytest.raises(IncompatibleError, match="disagree on"):
        victims_of(watch([GradientState({"other.weight": torch.ones(3)})], smooth()))
    own = dict(smooth().named_parameters())
    sent = {"head.bias": own["head.bias"], "other.weight": torch.ones(3)}
    with pytest.raises(IncompatibleError, match="1 parameters .other.weight"):
        victims_of(watch([GradientState(sent)], smooth()))


def test_clients_that_sent_other_parts_are_attacked_side_by_side(smooth, small, gradient_of, watch):
    model = smooth()
    whole = [gradient_of(model, small[k, None], torch.tensor([k])) for k in range(3)]
    sent = [
        {name: value for name, value in slopes.items() if keeps(name)}
        for slopes, keeps in zip(
            whole,
            (lambda n: True, lambda n: not n.startswith(STEM), lambda n: not n.startswith(HEAD)),
            strict=True,
        )
    ]
    attack = attacks.get("inverting-gradients")(steps=20, bn="eval")
    found = attack(watch([GradientState(one) for one in sent], model))
    alone = attack(watch([GradientState(sent[0])], model))
    assert torch.equal(found.images[:1], alone.images) and found.labels.tolist() == [0, 1, 2]
    assert bool((found.fit < 0.9).all())


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4])
def test_labels_are_told_by_simulated_gradients(smooth, small, small_labels, gradient_of, size):
    model, right, many = smooth(), 0, 6
    for first in range(0, many * size, size):
        labels = small_labels[first : first + size]
        slopes = gradient_of(model, small[first : first + size], labels)
        rest = {name: value for name, value in slopes.items() if not name.startswith(HEAD)}
        victim = Victim(0, 1, model, rest, local=False)
        counts = simulated_counts(victim, probes(small[60:], (1, 8, 8)), size, 10)
        assert int(counts.sum()) == size
        right += int(torch.minimum(counts, torch.bincount(labels, minlength=10)).sum())
    assert right >= 0.8 * many * size  # a guess has a tenth of single images


def test_an_upload_of_nothing_gives_even_labels(smooth):
    model = smooth()
    rest = {n: torch.zeros_like(p) for n, p in model.named_parameters() if not n.startswith(HEAD)}
    counts = simulated_counts(Victim(0, 1, model, rest, False), probes(None, (1, 8, 8)), 20, 10)
    assert counts.tolist() == [2] * 10


def test_a_layer_that_was_not_sent_is_named():
    victim = Victim(3, 2, nn.Linear(2, 2), {"weight": torch.ones(2, 2)}, False)
    with pytest.raises(IncompatibleError, match="client 3 in round 2 holds nothing of bias"):
        victim.sent("weight", "bias")
