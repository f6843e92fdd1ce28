"""Membership in uploads whose representations clients change by drawn noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.common.channels import rows_resent
from fedre_privacy.attacks.mixtures.class_statistics import class_statistics, log_likelihoods
from fedre_privacy.core.artifacts import (
    Artifact,
    Counts,
    EntangledRep,
    Prototypes,
    Representations,
)
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

SIDE, OWN = 8, 40


def images(count: int, seed: int) -> Tensor:
    return 0.5 + 0.1 * torch.randn(count, 1, SIDE, SIDE, generator=stream(seed, "images"))


ASKED = torch.cat([images(OWN, 1), images(OWN, 2)])
MEMBER = torch.arange(2 * OWN) < OWN


def observe(*artifacts: Artifact, module: nn.Module) -> Observation:
    labels = torch.zeros(len(ASKED), dtype=torch.int64)
    upload = Upload(0, 1, artifacts)
    attacked = tuple(a for a in artifacts if not isinstance(a, Counts))
    return Observation(
        threat=threats.get("strong"), targets=(Upload(0, 1, attacked),), uploads=(upload,),
        broadcasts=(), extractors={(0, 1): module}, image_shape=(1, SIDE, SIDE), num_classes=2,
        aux=images(300, 3), aux_labels=torch.zeros(300, dtype=torch.int64),
        candidates=Candidates(ASKED, labels, torch.zeros_like(labels)),
    )  # fmt: skip


def area(*artifacts: Artifact, module: nn.Module) -> float:
    found = attacks.get("membership")()(observe(*artifacts, module=module)).scores
    return float(roc_auc_score(MEMBER.numpy(), found.numpy()))


def test_noise_does_not_hide_whose_representations_were_sent(noisy):
    sent = noisy.sample(ASKED[MEMBER], stream(0, "drawn"))
    rows = Representations(sent, torch.zeros(OWN, dtype=torch.int64))
    assert area(rows, module=noisy) > 0.95
    assert area(rows, module=nn.Flatten()) < 0.75


def test_noise_does_not_hide_what_a_mean_was_taken_of(noisy):
    few = ASKED[MEMBER][:2]
    kept = torch.cat([ASKED[:2], ASKED[OWN:]])
    seen = []
    for module in (noisy, nn.Flatten()):
        mean = noisy.sample(few, stream(0, "drawn")).mean(0, keepdim=True)
        prototype = Prototypes(mean, torch.tensor([0])), Counts(torch.tensor([2, 0]))
        whole = observe(*prototype, module=module)
        labels = torch.zeros(len(kept), dtype=torch.int64)
        found = attacks.get("membership")()(
            replace(whole, candidates=Candidates(kept, labels, labels))
        ).scores
        seen.append(float((found[:2, None] > found[None, 2:]).float().mean()))
    assert seen[0] > 0.95 and seen[1] < seen[0]


class Uneven(nn.Flatten):
    """Shows half of the values twenty times as loud as the others."""

    def forward(self, images: Tensor) -> Tensor:
        made = super().forward(images)
        return made * (torch.arange(made.shape[1]) % 2 * 0.95 + 0.05)


@pytest.mark.parametrize("mixed", [False, True])
def test_declared_noise_on_rows_is_allowed_for(mixed):
    few = [2 * i + torch.arange(2) for i in range(OWN // 2)]
    found = {True: [], False: []}
    for number, own in enumerate(few):
        row = Uneven()(ASKED[own]).mean(0)
        bound = 0.5 * float(row.norm())
        noise = 0.02 * torch.randn(row.shape, generator=stream(number, "row"))
        row, label = 0.5 * row + noise, torch.tensor([0])
        sent = (
            EntangledRep(row, torch.tensor([1.0, 0.0])) if mixed else Prototypes(row[None], label)
        )
        channel = Channel(rows=(ClippingStep(bound), Noise(0.02)))
        counts = Counts(torch.tensor([2, 0]))
        for told in found:
            seen = observe(sent, counts, module=Uneven())
            seen = replace(seen, defenses=(KnownDefense("own", {}, channel),) if told else ())
            scores = attacks.get("membership")()(seen).scores
            found[told].append(float((scores[own, None] > scores[None, OWN:]).float().mean()))
    told, untold = (sum(found[one]) / len(few) for one in (True, False))
    assert told > 0.85 and told > untold + 0.1


@pytest.mark.parametrize("mixed", [False, True])
def test_coordinates_that_a_mask_removed_are_left_out(mixed):
    few = [2 * i + torch.arange(2) for i in range(OWN // 2)]
    found = {True: [], False: []}
    for number, own in enumerate(few):
        kept = torch.rand(SIDE**2, generator=stream(number, "mask")) < 0.3
        row, label = ASKED[own].flatten(1).mean(0) * kept * 2, torch.tensor([0])
        sent = (
            EntangledRep(row, torch.tensor([1.0, 0.0])) if mixed else Prototypes(row[None], label)
        )
        for told in found:
            seen = observe(sent, Counts(torch.tensor([2, 0])), module=nn.Flatten())
            known = KnownDefense("own", {}, Channel(rows=(Masking(2.0),)))
            seen = replace(seen, defenses=(known,) if told else ())
            scores = attacks.get("membership")()(seen).scores
            found[told].append(float((scores[own, None] > scores[None, OWN:]).float().mean()))
    told, untold = (sum(found[one]) / len(few) for one in (True, False))
    assert told > 0.9 and told > untold + 0.1


def test_rounding_at_random_hides_no_single_representations():
    step, draws = RandomRounding(levels=12), torch.Generator().manual_seed(0)
    reps = Uneven()(ASKED[MEMBER])
    rows = rows_resent(Channel(rows=(step,)), reps, reps, draws)
    seen = observe(Representations(rows, torch.zeros(OWN, dtype=torch.int64)), module=Uneven())
    areas = []
    for known in ((KnownDefense("own", {}, Channel(rows=(step,))),), ()):
        found = attacks.get("membership")()(replace(seen, defenses=known)).scores
        areas.append(float(roc_auc_score(MEMBER.numpy(), found.numpy())))
    assert areas[0] > 0.95 and areas[0] > areas[1] + 0.1


@pytest.mark.parametrize("single", [True, False])
def test_rounding_is_said_to_be_used_where_it_is(single):
    labels = torch.zeros(2, dtype=torch.int64)
    rows = ASKED[:2].flatten(1)
    sent = Representations(rows, labels) if single else Prototypes(rows[:1], labels[:1])
    seen = observe(sent, module=nn.Flatten())
    steps = attacks.get("membership")().adapts(seen)["rows"]
    assert (RandomRounding in steps) is single and Noise in steps


def test_rows_that_no_upload_holds_were_not_defended():
    mean = Uneven()(ASKED[:2]).mean(0, keepdim=True)
    channel = Channel(rows=(ClippingStep(0.5 * float(mean.norm())), Noise(0.02)))
    plain = observe(Prototypes(mean, torch.tensor([0])), module=Uneven())
    told = replace(plain, defenses=(KnownDefense("own", {}, channel),))
    scores = [
        attacks.get("membership")()(one).scores
        for one in (replace(plain, uploads=()), replace(told, uploads=()), told)
    ]
    assert torch.equal(scores[0], scores[1]) and not torch.equal(scores[1], scores[2])


def test_noise_alone_tells_nothing(noisy):
    rows = torch.randn(OWN, SIDE**2, generator=stream(0, "alone"))
    sent = Representations(rows, torch.zeros(OWN, dtype=torch.int64))
    assert 0.3 < area(sent, module=noisy) < 0.7


def test_noise_is_the_share_of_the_spread_that_no_candidate_takes_off():
    rng, dim = stream(0, "normals"), 12
    reps, labels = torch.randn(4000, dim, generator=rng), torch.zeros(4000, dtype=torch.int64)
    noise = torch.diag(torch.linspace(0, 3, dim)).double()
    told = class_statistics(reps, labels, 1, noise)
    assert torch.allclose(
        told.noise.sort().values, noise.diagonal() / (noise.diagonal() + 1.1), atol=0.05
    )
    eye = torch.eye(dim)
    symmetric = told.whiten_symmetrically(eye, torch.zeros(dim))
    assert torch.allclose(symmetric, symmetric.T, atol=1e-9)
    x, shift = (torch.randn(5, dim, generator=rng).double() for _ in range(2))
    weight, variance = torch.tensor([[0.5], [0.2]]).double(), torch.tensor([[0.6], [0.3]]).double()
    silent, other = log_likelihoods(shift, x, weight, variance, torch.zeros(dim).double())
    plain, same = log_likelihoods(shift, x, weight, variance)
    assert torch.allclose(silent, plain) and torch.allclose(other, same)
    loud, _ = log_likelihoods(shift, x, weight, variance, torch.ones(dim).double())
    gap = (shift - 0.5 * x).square().sum(1) / 0.6 + dim * variance[0].log()
    assert torch.allclose(loud[0], -gap / 2)


@pytest.mark.parametrize("mixes", [False, True])
def test_images_mixed_with_others_are_not_claimed_to_be_allowed_for(mixes):
    channel = Channel(extractor=(RandomChange(mixes=mixes),))
    rows = Representations(ASKED[:2].flatten(1), torch.zeros(2, dtype=torch.int64))
    seen = observe(rows, module=nn.Flatten())
    seen = replace(seen, defenses=(KnownDefense("own", {}, channel),))
    expected = {LearntChange} if mixes else {LearntChange, RandomChange}
    assert set(attacks.get("membership")().adapts(seen)["extractor"]) == expected
