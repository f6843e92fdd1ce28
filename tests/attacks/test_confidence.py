"""The default confidence: from what the attacker holds, higher where the answer explains more."""

from __future__ import annotations

import dataclasses

import torch

from fedre_privacy.attacks.base import attacks, confidence_of
from fedre_privacy.core.outcomes import Reconstruction

CPU = torch.device("cpu")


def found_of(images, fit=None):
    count = len(images)
    return Reconstruction(
        images=images,
        prior=torch.zeros_like(images),
        fit=torch.zeros(count) if fit is None else fit,
        trace=torch.zeros(1, count),
        trace_steps=torch.zeros(1),
        stopped_because="done",
        diverged=torch.zeros(count, dtype=torch.bool),
    )


def test_the_right_answers_are_the_surest(observe, rotation):
    images = torch.rand(6, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    extractor = rotation()
    seen = observe([extractor(images)], {(0, 1): extractor})
    right = confidence_of(seen, found_of(images), CPU)
    assert bool((right > 0.99).all())
    shuffled = confidence_of(seen, found_of(images.roll(1, 0)), CPU)
    assert bool((shuffled < 0.01).all())
    half = images.clone()
    half[:3] = (images[:3] + 0.5) / 2
    mixed = confidence_of(seen, found_of(half), CPU)
    assert float(mixed[:3].max()) < float(mixed[3:].min())


def test_auxiliary_images_are_held_against_an_answer(observe, rotation):
    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    extractor = rotation()
    seen = observe([extractor(images[:1])], {(0, 1): extractor})
    alone = confidence_of(dataclasses.replace(seen, aux=None), found_of(images[1:]), CPU)
    assert bool(alone.isnan().all())  # nothing to hold it against
    known = dataclasses.replace(seen, aux=images[:1], aux_labels=torch.tensor([0]))
    assert float(confidence_of(known, found_of(images[1:]), CPU)) < 0.01


def test_without_an_extractor_the_match_decides_and_lost_answers_have_none(observe, rotation):
    seen = observe([torch.ones(3, 256)], {(0, 1): rotation()})
    seen = dataclasses.replace(seen, extractors={})
    answer = found_of(torch.rand(3, 1, 16, 16), torch.tensor([0.0, 1.0, 3.0]))
    assert torch.equal(confidence_of(seen, answer, CPU), torch.tensor([1.0, 0.5, 0.25]))
    lost = dataclasses.replace(answer, diverged=torch.tensor([False, True, False]))
    assert confidence_of(seen, lost, CPU).isnan().tolist() == [False, True, False]


def test_every_answer_in_images_has_one(observe, rotation):
    images = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    extractor = rotation()
    seen = observe([extractor(images)], {(0, 1): extractor})
    found = attacks.get("pixel")(steps=5)(seen)
    assert found.confidence.shape == (3,) and bool(found.confidence.isfinite().all())
