"""Candidates put in order by representations, prototypes and mixtures whose images are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.common.channels import clip_rows, rows_resent
from fedre_privacy.core.artifacts import Artifact, Counts, EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import (
    Channel,
    ClippingStep,
    LearntChange,
    Masking,
    Noise,
    RandomChange,
    RandomRounding,
)
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


def told(seen: Observation, *steps) -> Observation:
    """The same, with steps on rows that clients declared."""
    known = KnownDefense("own", {}, Channel(rows=steps))
    return replace(seen, defenses=(known,))


def shares_found(sent: list[Artifact], chosen: list[Tensor], *steps, module: nn.Module) -> list:
    """Share of pairs of a member and another image of its class in order, told the steps or not."""
    found = []
    for know in (True, False):
        right = []
        for artifact, members in zip(sent, chosen, strict=True):
            seen = replace(observe(artifact), extractors={(0, 1): module})
            seen = told(seen, *steps) if know else seen
            row = attacks.get("nearest-candidate")(images=2)(seen).scores[0]
            others = (LABELS == 0) & ~torch.isin(torch.arange(len(LABELS)), members)
            right.append(float((row[members, None] > row[None, others]).float().mean()))
        found.append(sum(right) / len(right))
    return found


PAIRS = [2 * i + torch.arange(2) for i in range(EACH // 2)]


class Uneven(nn.Flatten):
    """Shows half of the values twenty times as loud as the others."""

    def forward(self, images: Tensor) -> Tensor:
        made = super().forward(images)
        return made * (torch.arange(made.shape[1]) % 2 * 0.95 + 0.05)


def row_of(mean: Tensor, mixed: bool) -> Artifact:
    return (
        EntangledRep(mean, torch.eye(CLASSES)[0])
        if mixed
        else Prototypes(mean[None], torch.tensor([0]))
    )


@pytest.mark.parametrize("mixed", [False, True])
def test_declared_noise_and_bounds_of_rows_are_allowed_for(mixed):
    sent = []
    for number, members in enumerate(PAIRS):
        mean = Uneven()(ASKED[members]).mean(0)
        noise = 0.02 * torch.randn(mean.shape, generator=stream(number, "row"))
        sent.append(row_of(mean / (2 * mean.norm()) + noise, mixed))
    steps = (ClippingStep(0.5), Noise(0.02))
    known, unknown = shares_found(sent, PAIRS, *steps, module=Uneven())
    assert known > 0.8 and known > unknown + 0.1


@pytest.mark.parametrize("mixed", [False, True])
def test_coordinates_that_a_mask_removed_are_left_out(mixed):
    sent = []
    for number, members in enumerate(PAIRS):
        kept = torch.rand(FLAT.shape[1], generator=stream(number, "mask")) < 0.3
        sent.append(row_of(FLAT[members].mean(0) * kept * 2, mixed))
    known, unknown = shares_found(sent, PAIRS, Masking(2.0), module=nn.Flatten())
    assert known > 0.9 and known > unknown + 0.1


@pytest.mark.parametrize(
    "steps", [(ClippingStep(2.0),), (ClippingStep(2.0), Masking()), (Masking(), ClippingStep(1.0))]
)
def test_single_rows_are_compared_with_candidates_as_they_are_sent(steps):
    chosen = torch.arange(0, len(ASKED), 3)
    rows, kept = FLAT[chosen], torch.rand(FLAT.shape[1], generator=stream(0, "mask")) < 0.3
    for step in steps:
        bounded = isinstance(step, ClippingStep)
        rows = clip_rows(rows, step.norm) if bounded else rows * kept
    seen = observe(Representations(rows, LABELS[chosen]))
    found = attacks.get("nearest-candidate")()(told(seen, *steps)).scores
    assert float((found.argmax(1) == chosen).float().mean()) > 0.95


def test_rounding_at_random_is_noise():
    chosen = torch.arange(0, len(ASKED), 6)
    step = RandomRounding(levels=12)
    reps, draws = Uneven()(ASKED[chosen]), torch.Generator().manual_seed(0)
    rows = rows_resent(Channel(rows=(step,)), reps, reps, draws)
    seen = observe(Representations(rows, LABELS[chosen]))
    seen = replace(seen, extractors={(0, 1): Uneven()})
    known, unknown = (
        attacks.get("nearest-candidate")()(one).scores for one in (told(seen, step), seen)
    )
    found, missed = (float((one.argmax(1) == chosen).float().mean()) for one in (known, unknown))
    assert found > 0.9 and found > missed + 0.2, (found, missed)


def test_rows_that_no_upload_holds_were_not_defended():
    steps = ClippingStep(0.5), Masking(2.0)
    plain = observe(mean_of(2))
    scores = [
        attacks.get("nearest-candidate")()(one).scores
        for one in (plain, replace(told(plain, *steps), uploads=()), told(plain, *steps))
    ]
    assert torch.equal(scores[0], scores[1]) and not torch.equal(scores[1], scores[2])


@pytest.mark.parametrize("steps", [(), (Noise(0.1),), (ClippingStep(0.5),), (Masking(),)])
@pytest.mark.parametrize("drawn", [False, True])
def test_noise_finds_nothing(noisy, drawn, steps):
    rows = FLAT.mean(0) + 0.1 * torch.randn(30, FLAT.shape[1], generator=stream(0, "noise"))
    for step in steps:
        rows = clip_rows(rows, step.norm) if isinstance(step, ClippingStep) else rows
    module = noisy if drawn else nn.Flatten()
    seen = told(observe(Representations(rows, torch.zeros(30).long())), *steps)
    found = attacks.get("nearest-candidate")()(replace(seen, extractors={(0, 1): module})).scores
    first = [int(places(row, torch.tensor([i]))[0]) for i, row in enumerate(found)]
    assert 20 < sum(first) / len(first) < 40  # 29.5 by chance


def test_what_is_not_finite_and_what_has_no_extractor_is_no_answer():
    rows = torch.stack([FLAT[0], torch.full_like(FLAT[0], torch.nan)])
    found = scores(Representations(rows, torch.tensor([0, 0])))
    assert bool(found[0].isfinite().all()) and bool(found[1].isnan().all())
    blind = scores(Representations(FLAT[:1], torch.tensor([0])), extractor=False)
    assert bool(blind.isnan().all())
