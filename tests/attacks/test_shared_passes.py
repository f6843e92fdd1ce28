"""What is computed of auxiliary images once serves families, clients and calibration alike."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.ensemble_kalman import EnsembleKalman
from fedre_privacy.attacks.inversion.ridge_fit import Latest
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.core.artifacts import Prototypes, Representations
from fedre_privacy.core.types import Upload
from fedre_privacy.data.base import datasets
from fedre_privacy.models import shared_passes
from fedre_privacy.models.shared_passes import SharedPasses, extractor_name

PASSED = []


class Counted(nn.Module):
    """Counts the images that go through it, whatever copy of it they go through."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        PASSED.append(len(images))
        return self.inner(images)


@pytest.fixture
def two_families(observe, rotation):
    """Ten single representations and a prototype of each of two clients, 120 images beside them."""
    data = datasets.get("digits")(size=16, per_class=14).load()
    order = torch.randperm(140, generator=torch.Generator().manual_seed(0))
    images, labels = data.images[order].float() / 255, data.labels[order]
    nets = {(0, 1): Counted(rotation(0)), (2, 1): Counted(rotation(1))}
    seen = observe([net(images[:10]) for net in nets.values()], nets, threat="strong")
    targets = [
        Upload(client, round, (artifact,))
        for (client, round), net in nets.items()
        for artifact in (
            Representations(net(images[:10]), labels[:10]),
            Prototypes(net(images[10:20]).mean(0, keepdim=True), torch.tensor([3])),
        )
    ]
    PASSED.clear()
    seen = replace(seen, targets=tuple(targets), uploads=tuple(targets))
    return replace(seen, aux=images[20:], aux_labels=labels[20:])


def test_each_extractor_sees_the_auxiliary_images_once(two_families):
    LinearDecoder(views=4)(two_families)
    versions = 2 * 4 * 120  # of two extractors; families and calibration would make it six times
    assert versions <= sum(PASSED) < 2 * versions
    PASSED.clear()
    one = two_families.extractors[0, 1]
    public = replace(two_families, extractors={key: one for key in two_families.extractors})
    LinearDecoder(views=4)(public)
    assert sum(PASSED) < 1.5 * versions


@pytest.mark.parametrize(
    "attack", [LinearDecoder(views=2), EnsembleKalman(views=2, members=40, steps=1)]
)
def test_what_is_shared_changes_no_number(two_families, attack, monkeypatch):
    shared = attack(two_families, Context(seed=5))
    monkeypatch.setattr(shared_passes, "KEPT_BYTES", 0)
    beyond_memory = attack(two_families, Context(seed=5))
    monkeypatch.setattr(SharedPasses, "of", lambda self, name, count, make: make()[:count])
    monkeypatch.setattr(Latest, "of", lambda self, name, make: make())
    alone = attack(two_families, Context(seed=5))
    for other in (beyond_memory, alone):
        assert torch.equal(shared.images, other.images)
        assert torch.equal(shared.confidence, other.confidence)


def test_only_extractors_that_compute_the_same_share_a_name(rotation):
    net = Counted(rotation(0))
    name = extractor_name((0, 1), net)
    assert extractor_name((7, 3), copy.deepcopy(net)) == name
    others = [Counted(rotation(1)), rotation(0), Counted(nn.Sequential(rotation(0)))]
    scaled = copy.deepcopy(net)
    scaled._scale = 2.0
    buffered = copy.deepcopy(net)
    buffered.register_buffer("centre", torch.ones(2), persistent=False)
    assert name not in {extractor_name((0, 1), one) for one in (*others, scaled, buffered)}


def test_an_extractor_that_cannot_be_read_shares_with_itself_alone(rotation):
    hooked, closed = rotation(0), rotation(0)
    hooked[0].register_forward_hook(lambda *_: None)
    closed.scale = torch.ones(3)
    for one in (hooked, closed):
        again = extractor_name((0, 1), copy.deepcopy(one))
        assert extractor_name((0, 1), one) == again != extractor_name((1, 1), one)


def test_a_part_takes_rows_of_the_whole():
    whole = SharedPasses()
    reps = [torch.arange(6.0).reshape(3, 2), torch.ones(3, 2)]
    whole.of("a", 2, lambda: reps)
    part = whole.part(torch.tensor([2, 0]))
    first = part.of("a", 1, lambda: pytest.fail("computed again"))
    assert first[0].tolist() == [[4, 5], [0, 1]]
    assert part.of("b", 1, lambda: [torch.zeros(2, 2)])[0].shape == (2, 2)
    assert whole.of("b", 1, lambda: [torch.ones(3, 2)])[0].shape == (3, 2)
