"""One image for what a prototype was in several rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.joint_disentangle import JointDisentangle, prototype_views, spread
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.channels import Channel, ClippingStep, Masking
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import KnownDefense, Upload
from fedre_privacy.threats.base import threats

ROUNDS, CLASSES, SIDE = 12, 3, 8
BRIEF = {"steps": 5, "channels": (4,)}


class Extractor(nn.Module):
    """A narrow random layer, 12 numbers of 64, that has turned by `angle` since round 0."""

    def __init__(self, angle: float) -> None:
        super().__init__()
        first, second = torch.randn(2, 64, 12, generator=stream(3, "layer"))
        self.weight = nn.Parameter((first + angle * second) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


def pictures(count: int, seed: int) -> Tensor:
    """Smooth pictures (n, 1, 8, 8) in [0, 1]."""
    coarse = torch.rand(count, 1, 3, 3, generator=stream(seed, "pictures"))
    return nn.functional.interpolate(coarse, SIDE, mode="bilinear", align_corners=True)


@pytest.fixture
def trained(watch, weights):
    """Twelve rounds of three classes of one picture each; the recovered prototypes are targets."""
    private, mixed = pictures(CLASSES, 0), weights(ROUNDS, CLASSES)
    nets = [Extractor(0.2 * t) for t in range(ROUNDS)]
    with torch.no_grad():
        reps = torch.stack([net(private) for net in nets]).double()
    uploads = torch.einsum("tn,tnd->td", mixed, reps)
    labels = torch.tensor([1, 3, 5])
    target = Upload(0, ROUNDS, (Prototypes(reps[-1].float(), labels),))
    seen = watch(
        {0: (mixed, uploads)},
        threat=threats.get("strong"),
        aux=pictures(200, 1),
        extractors={(0, t + 1): net.requires_grad_(False) for t, net in enumerate(nets)},
    )
    return replace(seen, targets=(target,)), private, reps


def error(images: Tensor, truth: Tensor) -> float:
    return float((images - truth).square().mean())


def test_it_is_registered_and_declares_what_it_needs(trained):
    seen, _, _ = trained
    assert attacks.get("joint-disentangle") is JointDisentangle
    for name in ("fedre-paper", "realistic", "eavesdropper"):
        with pytest.raises(IncompatibleError, match="needs ALL-EXTRACTORS"):
            JointDisentangle(**BRIEF)(replace(seen, threat=threats.get(name)))
    with pytest.raises(IncompatibleError, match="two auxiliary images at least; given: 0"):
        JointDisentangle(**BRIEF)(replace(seen, aux=None))


def test_prototypes_are_seen_in_every_round(trained):
    seen, _, reps = trained
    found = prototype_views(seen, Context(), rounds=4, aux_limit=500)[0]
    assert found.rounds == [7, 9, 10, 12] and found.classes.tolist() == [1, 3, 5]
    truth = reps[[6, 8, 9, 11]]
    wrong = (found.vectors - truth).norm(dim=2) / truth.norm(dim=2)
    assert float(wrong.max()) < 0.05
    assert torch.equal(found.of(3), found.vectors[:, 1]) and found.of(4) is None


@pytest.mark.slow
def test_several_views_tell_more_than_one(trained):
    seen, private, reps = trained
    settings = {"steps": 120, "tv": 0.3, "channels": (8,)}
    one = JointDisentangle(views=1, **settings)(seen)
    many = JointDisentangle(views=6, **settings)(seen)
    mean = seen.aux.mean(0).expand_as(private)
    assert error(many.images, private) < 0.6 * error(one.images, private)
    assert error(many.images, private) < 0.3 * error(mean, private)


def test_one_view_is_the_plain_inversion(trained):
    seen, _, _ = trained
    one = JointDisentangle(views=1, **BRIEF)(seen)
    plain = DeepImagePrior(**BRIEF)(seen)
    assert torch.equal(one.images, plain.images)


def test_targets_of_one_round_stay_in_their_places(trained):
    seen, _, reps = trained
    (recovered,) = seen.targets
    counterfactual = replace(recovered, counterfactual=True)
    mixture = seen.uploads[-1]
    both = replace(seen, targets=(counterfactual, recovered, mixture))
    found = JointDisentangle(views=3, **BRIEF)(both)
    assert found.images.shape[0] == 7
    alone = JointDisentangle(views=3, **BRIEF)(seen)
    assert torch.allclose(found.images[3:6], alone.images, atol=1e-6)
    plain = DeepImagePrior(**BRIEF)(replace(seen, targets=(counterfactual, mixture)))
    assert torch.allclose(found.images[:3], plain.images[:3], atol=1e-6)
    assert torch.allclose(found.images[6:], plain.images[3:], atol=1e-6)
    assert not torch.allclose(found.images[:3], found.images[3:6], atol=1e-4)


def test_a_class_that_was_never_mixed_is_inverted_from_its_one_round(trained):
    seen, _, reps = trained
    labels = torch.tensor([1, 9, 5])
    target = Upload(0, ROUNDS, (Prototypes(reps[-1].float(), labels),))
    found = JointDisentangle(views=3, **BRIEF)(replace(seen, targets=(target,)))
    assert found.images.shape[0] == 3 and bool(found.images.isfinite().all())


def test_uploaded_prototypes_are_matched_in_every_round(trained):
    seen, private, reps = trained
    labels = torch.tensor([1, 3, 5])
    uploads = tuple(
        Upload(0, t + 1, (Prototypes(rows.float(), labels),)) for t, rows in enumerate(reps)
    )
    own = replace(seen, uploads=uploads, targets=(uploads[-1],))
    found = prototype_views(own, Context(), rounds=3, aux_limit=500)[0]
    assert torch.allclose(found.vectors, reps[[6, 8, 11]].float().double())
    assert found.rounds == [7, 9, 12]


@pytest.mark.slow
def test_shortened_prototypes_are_matched_as_shortened_ones(trained):
    seen, private, reps = trained
    labels, norm = torch.tensor([1, 3, 5]), 0.5 * float(reps.norm(dim=2).min())
    short = reps * norm / reps.norm(dim=2, keepdim=True)
    uploads = tuple(
        Upload(0, t + 1, (Prototypes(rows.float(), labels),)) for t, rows in enumerate(short)
    )
    clip = KnownDefense("clip", {}, Channel(rows=(ClippingStep(norm),)))
    naive = replace(seen, uploads=uploads, targets=(uploads[-1],))
    attack = JointDisentangle(views=6, steps=120, tv=0.3, channels=(8,))
    told = attack(replace(naive, defenses=(clip,)))
    assert error(told.images, private) < 0.5 * error(attack(naive).images, private)
    assert float(told.fit.max()) < 0.05
    mean = seen.aux.mean(0).expand_as(private)
    assert error(told.images, private) < 0.5 * error(mean, private)
    noise = tuple(
        Upload(
            0, u.round, (Prototypes(torch.randn(3, 12, generator=stream(u.round, "n")), labels),)
        )
        for u in uploads
    )
    nothing = attack(replace(seen, uploads=noise, targets=(noise[-1],), defenses=(clip,)))
    assert error(nothing.images, private) > 0.8 * error(mean, private)


@pytest.mark.parametrize(
    "defense",
    [
        KnownDefense("clip", {}, Channel(rows=(ClippingStep(1.0),))),
        KnownDefense("mask", {}, Channel(rows=(Masking(1.0),))),
    ],
)
def test_where_views_cannot_be_undone_one_round_is_matched(trained, defense):
    seen, _, _ = trained
    defended = replace(seen, defenses=(defense,))
    found = JointDisentangle(views=4, **BRIEF)(defended)
    assert torch.equal(found.images, DeepImagePrior(**BRIEF)(defended).images)
    assert not torch.equal(found.images, JointDisentangle(views=4, **BRIEF)(seen).images)


def test_a_client_of_one_class_is_matched_in_every_round(trained, watch):
    seen, _, reps = trained
    one = watch({0: (torch.ones(ROUNDS, 1), reps[:, 0])}, threat=seen.threat, aux=seen.aux,
                extractors=seen.extractors)  # fmt: skip
    found = prototype_views(one, Context(), rounds=2, aux_limit=500)[0]
    assert found.rounds == [7, 12] and torch.allclose(found.vectors[:, 0], reps[[6, 11], 0])


def test_fixed_weights_and_one_hot_encodings_are_seen_in_no_other_round(trained, watch, weights):
    seen, _, reps = trained
    fixed = weights(1, CLASSES).repeat(ROUNDS, 1)
    hot = nn.functional.one_hot(torch.arange(ROUNDS) % CLASSES, CLASSES).double()
    for mixed in (fixed, hot):
        uploads = torch.einsum("tn,tnd->td", mixed, reps)
        other = watch({0: (mixed, uploads)}, threat=seen.threat, aux=seen.aux,
                      extractors=seen.extractors)  # fmt: skip
        assert prototype_views(other, Context(), rounds=4, aux_limit=500) == {}


def test_noise_for_uploads_tells_nothing(trained):
    seen, private, _ = trained
    noise = [
        replace(u, artifacts=(replace(a, rep=torch.randn(12, generator=stream(u.round, "noise"))),))
        for u in seen.uploads
        for a in u.artifacts
    ]
    rows = torch.randn(CLASSES, 12, generator=stream(0, "noise"))
    target = Upload(0, ROUNDS, (Prototypes(rows, torch.tensor([1, 3, 5])),))
    other = replace(seen, uploads=tuple(noise), targets=(target,))
    found = JointDisentangle(views=4, steps=60, tv=0.3, channels=(8,))(other)
    mean = seen.aux.mean(0).expand_as(private)
    assert error(found.images, private) > 0.8 * error(mean, private)


def test_spread():
    assert spread(10, 1) == [9] and spread(2, 2) == [0, 1] and spread(40, 3) == [20, 30, 39]
    assert spread(5, 4) == [1, 2, 3, 4] and spread(3, 8) == [0, 1, 2]
