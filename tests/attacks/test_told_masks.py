"""Coordinates that were set to 0 are known from an uploaded representation of one image."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.common.told_masks import (
    left_by_mask,
    objective_of_rest,
    unmasked_extractors,
)
from fedre_privacy.core.artifacts import Prototypes, Representations
from fedre_privacy.core.channels import Channel, ClippingStep, LearntChange
from fedre_privacy.core.types import KnownDefense, Upload
from fedre_privacy.defenses.base import defenses
from fedre_privacy.defenses.defended_modules import DefendedExtractor, defended_extractor
from fedre_privacy.defenses.learnt import begin_modules
from fedre_privacy.defenses.local_pass import ModelShapes

SHAPES = ModelShapes((1, 8, 8), 12, 3)
LABELS = torch.arange(5) % 3


@pytest.fixture
def bare():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Softplus())


def defended(bare, *names):
    given = [defenses.get(name)() for name in names]
    return defended_extractor(bare, given, begin_modules(given, SHAPES)).eval()


@pytest.fixture
def images():
    return torch.rand(5, *SHAPES.image)


@pytest.mark.parametrize("names", [["soteria"], ["disco"], ["soteria", "disco"]])
def test_an_extractor_before_zeros_are_set_makes_what_is_left(bare, images, names):
    module = defended(bare, *names)
    before = module.unmasked()
    assert torch.allclose(before(images), bare(images))
    sent = module(images)
    assert bool((sent == 0).any(1).all())
    assert torch.allclose(left_by_mask(before(images), sent), sent, atol=1e-6)
    wide = objective_of_rest(lambda reps, wanted: (reps - wanted).abs().sum(1))
    assert wide(before(images), sent).max() < 1e-5
    assert module.defenses[0].name == names[0]  # it is as it was


@pytest.mark.parametrize("names", [["cem"], ["soteria", "cem"], ["mixup"]])
def test_zeros_that_could_be_filled_again_are_not_told(bare, names):
    assert defended(bare, *names).unmasked() is None


@pytest.mark.parametrize("names", [["cem", "soteria"], ["mixup", "disco"]])
def test_other_changes_stay(bare, images, names):
    before = defended(bare, *names).unmasked()
    assert isinstance(before, DefendedExtractor) and before.defenses[0].name == names[0]


SOTERIA = Channel(extractor=(LearntChange(),))


@pytest.fixture
def told(observe, bare, images):
    """What an attack finds that knows of a channel, where it is told these rows of an upload."""
    module = defended(bare, "soteria")
    sent = Representations(module(images).detach(), LABELS)

    def ask(target=sent, sent=sent, channel=SOTERIA, module=module):
        seen = observe([], {(0, 1): module}, artifacts=[target], image_shape=SHAPES.image)
        knows = (KnownDefense("soteria", {}, channel),)
        seen = replace(seen, uploads=(Upload(0, 1, (sent,)),), defenses=knows)
        return unmasked_extractors(seen, seen.extractors)

    return ask


def test_representations_that_were_uploaded_tell_zeros(told, bare, images):
    found = told()
    assert torch.allclose(found[0, 1](images), bare(images))


def test_other_targets_do_not(told, bare, images):
    reps = defended(bare, "soteria")(images).detach()
    prototypes = Prototypes(reps, torch.arange(5))
    assert told(prototypes, prototypes) is None  # a mean of images is 0 where all of them are
    assert told(Representations(reps + 1e-3, LABELS)) is None  # another attack recovered it
    assert told(channel=SOTERIA.then(Channel(each=(ClippingStep(1.0),)))) is None
    assert told(channel=Channel(extractor=(LearntChange(random=True),))) is None
    assert told(module=bare) is None  # an attacker that does not know of it
    assert told(module=defended(bare, "nopeek")) is None
