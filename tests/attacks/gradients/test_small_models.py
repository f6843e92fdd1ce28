"""Small models and their low-rank updates are read as the updates that they are."""

import pytest
import torch

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.gradients.victims import victims_of
from fedre_privacy.core.artifacts import (
    GradientState,
    LowRankChange,
    LowRankModel,
    ModelState,
    SmallModelState,
)
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import LocalTrainingFacts
from fedre_privacy.protocols.fedkd import pack

TRAINING = LocalTrainingFacts(0.1, 2, 8, {0: 2})


@pytest.fixture
def sent(smooth, small, small_labels, trained):
    """A model and its parameters after two local steps on two images."""
    model = smooth()
    return model, trained(model, small[:2], small_labels[:2], 0.1, 2)


def upload_of(watch, artifact, model):
    (victim,) = victims_of(watch([artifact], model, size=2, training=TRAINING))
    assert victim.local
    return victim.upload


@pytest.mark.parametrize("factored", ["update", "parameters"])
def test_factors_are_multiplied_out(sent, watch, factored):
    model, after = sent
    own = {name: value.detach() for name, value in model.named_parameters()}
    change = {name: after[name] - own[name] for name in own}
    packed = (
        LowRankChange(pack(change, 1.0)) if factored == "update" else LowRankModel(pack(after, 1.0))
    )
    found, wanted = (upload_of(watch, a, model) for a in (packed, ModelState(after)))
    for name in own:
        torch.testing.assert_close(found[name], wanted[name], atol=1e-5, rtol=1e-4)


def test_small_models_are_attacked_as_models(sent, watch):
    model, after = sent
    attack = attacks.get("update-inversion")(steps=3, bn="eval")
    found = [
        attack(watch([kind(after)], model, size=2, training=TRAINING)).images
        for kind in (ModelState, SmallModelState)
    ]
    assert torch.equal(*found)


def test_running_statistics_may_travel_too_and_other_tensors_may_not(smooth, watch):
    model = smooth(norm=True)
    params = {name: value.detach() for name, value in model.named_parameters()}
    buffers = dict(model.named_buffers())
    assert upload_of(watch, SmallModelState({**params, **buffers}), model).keys() == params.keys()
    with pytest.raises(IncompatibleError, match="stranger"):
        upload_of(watch, SmallModelState({**params, "stranger": torch.zeros(1)}), model)


def test_the_labels_that_were_used_are_reported(smooth, small, small_labels, gradient_of, watch):
    model, rows = smooth(), torch.tensor([5, 2, 7])
    gradients = GradientState(gradient_of(model, small[rows], small_labels[rows]))
    attack = attacks.get("inverting-gradients")(steps=2, bn="eval", labels="rowmin")
    found = attack(watch([gradients], model, size=3))
    assert found.labels.tolist() == sorted(small_labels[rows].tolist())
