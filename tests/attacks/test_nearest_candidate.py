"""Candidates put in order by representations, prototypes and mixtures whose images are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import attacks
from fedre_privacy.core.artifacts import Artifact, Counts, EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Channel, LearntChange, RandomChange
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Candidates, KnownDefense, Observation, Upload
from fedre_privacy.threats.base import threats

CLASSES, SIDE, EACH = 3, 8, 60


def images(count: int, label: int, seed: int) -> Tensor:
    """Gaussian images around the centre of their class."""
    centre = 0.5 + 0.1 * torch.randn(1, SIDE, SIDE, generator=stream(9, "centre", index=label))
    return centre + 0.1 * torch.randn(count, 1, SIDE, SIDE, generator=stream(seed, "images"))


ASKED = torch.cat([images(EACH, label, label) for label in range(CLASSES)])
LABELS = torch.arange(CLASSES).repeat_interleave(EACH)
FLAT = ASKED.flatten(1)


def observe(*artifacts: Artifact, aux: bool = True, extractor: bool = True) -> Observation:
    public = torch.cat([images(200, label, 50 + label) for label in range(CLASSES)])
    upload = Upload(0, 1, artifacts)
    attacked = tuple(a for a in artifacts if not isinstance(a, Counts))
    return Observation(
        threat=threats.get("strong"), targets=(Upload(0, 1, attacked),), uploads=(upload,),
        broadcasts=(), extractors={(0, 1): nn.Flatten()} if extractor else {},
        image_shape=(1, SIDE, SIDE), num_classes=CLASSES, aux=public if aux else None,
        aux_labels=torch.arange(CLASSES).repeat_interleave(200) if aux else None,
        candidates=Candidates(ASKED, LABELS, torch.full((len(ASKED),), -1)),
    )  # fmt: skip


def scores(*artifacts: Artifact, **given) -> Tensor:
    settings = {k: given.pop(k) for k in ("images",) if k in given}
    return attacks.get("nearest-candidate")(**settings)(observe(*artifacts, **given)).scores


def mean_of(size: int, label: int = 0) -> Prototypes:
    return Prototypes(FLAT[label * EACH :][:size].mean(0, keepdim=True), torch.tensor([label]))


def places(row: Tensor, members: Tensor) -> Tensor:
    """Where members stand among the candidates of their class, 0 the first."""
    own = (LABELS == LABELS[members[0]]).nonzero().squeeze(1)
    order = own[row[own].argsort(descending=True)]
    return torch.tensor([int((order == m).nonzero()) for m in members])


@pytest.mark.parametrize("aux", [True, False])
def test_a_single_representation_finds_its_image(aux):
    chosen = torch.tensor([3, 70, 150])
    found = scores(Representations(FLAT[chosen], LABELS[chosen]), aux=aux)
    assert found.argmax(1).tolist() == chosen.tolist()


def test_what_a_row_says_of_its_class_is_not_its_label():
    chosen = torch.tensor([3, 70])
    one, other = (
        scores(Representations(FLAT[chosen], torch.tensor(labels))) for labels in ([0, 1], [2, 2])
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("known", [True, False])
def test_means_of_few_put_their_images_first(known):
    given = {"images": 4} if known else {}
    found = scores(mean_of(4), **given)[0]
    assert int(places(found, torch.arange(4)).max()) < 8
    assert int(LABELS[found.argmax()]) == 0


def test_numbers_that_were_sent_are_used():
    counts = Counts(torch.tensor([4, 0, 0]))
    told = scores(mean_of(4), counts)
    assert torch.equal(told[0, LABELS == 0], scores(mean_of(4), images=4)[0, LABELS == 0])


def test_means_of_many_hardly_order_them():
    found = scores(mean_of(50), images=50)[0]
    assert 15 < float(places(found, torch.arange(50)).double().mean()) < 29


def test_a_mixture_ranks_its_classes_alone():
    members = torch.tensor([0, 1, EACH, EACH + 1])
    mixed = EntangledRep(FLAT[members].mean(0), torch.tensor([0.5, 0.5, 0.0]))
    found = scores(mixed, images=2)[0]
    assert int(places(found, members[:2]).max()) < 10
    assert bool((found[LABELS == 2] < found[LABELS < 2].min()).all())


def under_noise(*artifacts: Artifact, module: nn.Module, **settings) -> Tensor:
    seen = replace(observe(*artifacts), extractors={(0, 1): module})
    return attacks.get("nearest-candidate")(**settings)(seen).scores


def test_noise_that_clients_draw_is_no_cover(noisy):
    chosen = torch.arange(0, len(ASKED), 6)
    sent = noisy.sample(ASKED[chosen], stream(0, "drawn"))
    rows = Representations(sent, LABELS[chosen])
    known, unknown = (under_noise(rows, module=module) for module in (noisy, nn.Flatten()))
    assert float((known.argmax(1) == chosen).float().mean()) > 0.9
    assert float((unknown.argmax(1) == chosen).float().mean()) < 0.3
    mean = Prototypes(sent[:2].mean(0, keepdim=True), torch.tensor([0]))
    found = under_noise(mean, module=noisy, images=2)[0]
    assert int(places(found, chosen[:2]).max()) < 10


def test_images_mixed_with_others_are_not_claimed_to_be_allowed_for():
    attack = attacks.get("nearest-candidate")()
    for mixes, expected in ((False, {LearntChange, RandomChange}), (True, {LearntChange})):
        channel = Channel(extractor=(RandomChange(mixes=mixes),))
        seen = replace(observe(mean_of(4)), defenses=(KnownDefense("own", {}, channel),))
        assert set(attack.adapts(seen)["extractor"]) == expected


@pytest.mark.parametrize("drawn", [False, True])
def test_noise_finds_nothing(noisy, drawn):
    rows = FLAT.mean(0) + 0.1 * torch.randn(30, FLAT.shape[1], generator=stream(0, "noise"))
    module = noisy if drawn else nn.Flatten()
    found = under_noise(Representations(rows, torch.zeros(30).long()), module=module)
    first = [int(places(row, torch.tensor([i]))[0]) for i, row in enumerate(found)]
    assert 20 < sum(first) / len(first) < 40  # 29.5 by chance


def test_what_is_not_finite_and_what_has_no_extractor_is_no_answer():
    rows = torch.stack([FLAT[0], torch.full_like(FLAT[0], torch.nan)])
    found = scores(Representations(rows, torch.tensor([0, 0])))
    assert bool(found[0].isfinite().all()) and bool(found[1].isnan().all())
    blind = scores(Representations(FLAT[:1], torch.tensor([0])), extractor=False)
    assert bool(blind.isnan().all())
