"""How much of an update the gradient of images makes up, by every attack that computes one."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.attacks.base import Attack, attacks
from fedre_privacy.core.artifacts import GradientState, ModelState
from fedre_privacy.core.types import LocalTrainingFacts

COMPARE = [
    name
    for name in attacks.names()
    if attacks.get(name).explained is not Attack.explained and hasattr(attacks.get(name), "bn")
    if name != "fishing"
]
"""Those that compute what a client sends, fished heads aside."""
CLOSED = ["analytic", "spear"]
"""Those that read a linear layer, of pixels here; `imprint` needs a server's layer."""


@pytest.fixture
def gradients(small, small_labels, smooth, gradient_of):
    """What two clients send of two images each."""
    model = smooth()
    parts = [slice(0, 2), slice(2, 4)]
    return model, [gradient_of(model, small[one], small_labels[one]) for one in parts]


def test_who_compares():
    assert {"dlg", "idlg", "inverting-gradients", "update-inversion"} <= set(COMPARE)


@pytest.mark.parametrize("name", COMPARE)
def test_true_images_explain_all_and_others_less(name, gradients, small, small_labels, watch):
    model, sent = gradients
    training = LocalTrainingFacts(0.1, 1, 2, {0: 2, 1: 2})
    if name == "update-inversion":
        own = dict(model.named_parameters())
        after = [{n: own[n] - 0.1 * g[n] for n in own} for g in sent]
        seen = watch([ModelState(one) for one in after], model, size=2, training=training)
    else:
        seen = watch([GradientState(g) for g in sent], model, size=2)
    attack = attacks.get(name)(bn="eval")
    right = attack.explained(seen, small[:4], small_labels[:4])
    swapped = attack.explained(seen, small[:4].roll(2, 0), small_labels[:4])
    grey = attack.explained(seen, torch.full_like(small[:4], 0.5), small_labels[:4])
    assert right.shape == (4,) and float(right.min()) > 0.9999
    assert bool((swapped < right).all()) and bool((grey < right).all())
    assert right[0] == right[1] and right[2] == right[3]  # one number for each upload


@pytest.mark.parametrize("name", CLOSED)
def test_a_layers_gradient_lies_in_the_span_of_the_true_images(
    name, dense, small, small_labels, gradient_of, watch
):
    model = dense()
    sent = [gradient_of(model, small[a:b], small_labels[a:b]) for a, b in ((0, 3), (3, 6))]
    seen = watch([GradientState(g) for g in sent], model, size=3)
    attack, none = attacks.get(name)(), torch.zeros(0, dtype=torch.int64)
    right = attack.explained(seen, small[:6], none)
    swapped = attack.explained(seen, small[:6].roll(3, 0), none)
    grey = attack.explained(seen, torch.full_like(small[:6], 0.5), none)
    lost = small[:6].clone()
    lost[4] = torch.nan
    assert float(right.min()) > 0.9999
    assert bool((swapped < right - 1e-3).all()) and bool((grey < swapped).all())
    assert attack.explained(seen, lost, none).isnan().tolist() == [False] * 3 + [True] * 3


def test_a_factor_changes_nothing_and_a_sign_takes_all(gradients, small, small_labels, watch):
    model, (sent, _) = gradients
    attack = attacks.get("inverting-gradients")(bn="eval")

    def share(factor):
        scaled = GradientState({name: factor * value for name, value in sent.items()})
        return float(
            attack.explained(watch([scaled], model, size=2), small[:2], small_labels[:2])[0]
        )

    assert share(1.0) == pytest.approx(1, abs=1e-4) and share(7.0) == pytest.approx(share(1.0))
    assert share(-1.0) == 0 and share(0.0) == pytest.approx(0, abs=1e-6)


def test_several_local_steps_lie_along_a_gradient_on_the_path(
    small, small_labels, smooth, trained, watch
):
    model = smooth()
    after = trained(model, small[:4], small_labels[:4], 0.02, 20)
    training = LocalTrainingFacts(0.02, 20, 4, {0: 4})
    seen = watch([ModelState(after)], model, size=4, training=training)
    attack = attacks.get("update-inversion")(unroll=5)
    right = attack.explained(seen, small[:4], small_labels[:4])
    other = attack.explained(seen, small[10:14], small_labels[:4])
    assert float(right[0]) > 0.8 and float(right[0]) > float(other[0])


def test_an_image_that_is_absent_leaves_its_upload_without_a_share(
    gradients, small, small_labels, watch
):
    model, sent = gradients
    images = small[:4].clone()
    images[1] = torch.nan
    attack = attacks.get("inverting-gradients")(bn="eval")
    seen = watch([GradientState(g) for g in sent], model, size=2)
    share = attack.explained(seen, images, small_labels[:4])
    assert share.isnan().tolist() == [True, True, False, False]
