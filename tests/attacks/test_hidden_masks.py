"""Masks under noise or rounding of a known size: which coordinates were sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks.common.hidden_masks import sent_numbers, with_masks_shown
from fedre_privacy.core.artifacts import EntangledRep, GradientState, ModelState, Prototypes
from fedre_privacy.core.channels import (
    Channel,
    ClippingStep,
    Masking,
    Noise,
    RandomRounding,
    UnknownNoise,
    Value,
)
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Broadcast, KnownDefense, Observation, Upload
from fedre_privacy.threats.base import threats

WIDTH, SHARE = 400, 0.3


def masked(count: int, own: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of which half are 0, and what of them is sent."""
    draws = stream(seed, "rows")
    features = torch.relu(torch.randn(count, WIDTH, generator=draws))
    sent = torch.rand(count if own else 1, WIDTH, generator=draws) < SHARE
    return features * sent, sent.expand(count, WIDTH)


def under_noise(rows: Tensor, ratio: float, seed: int = 0) -> tuple[Tensor, Noise]:
    """Rows under normal noise that is as long as `ratio` times their usual length."""
    std = ratio * float(rows.norm(dim=1).square().mean().sqrt()) / WIDTH**0.5
    drawn = torch.randn(rows.shape, generator=stream(seed, "noise"))
    return rows + std * drawn, Noise(std, normal=True)


@pytest.mark.parametrize(("count", "ratio"), [(50, 0.25), (50, 1.0), (5, 0.1)])
def test_one_mask_of_all_rows_is_found(count, ratio):
    rows, sent = masked(count, own=False)
    seen, noise = under_noise(rows, ratio)
    told = sent_numbers((Masking(), noise), seen)
    assert bool((told == told[0]).all())
    assert float((told != sent).float().mean()) < 0.05


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("ratio", [0.05, 0.25])
def test_a_mask_of_each_row_is_found_where_something_was_sent(count, ratio):
    rows, sent = masked(count, own=True)
    seen, noise = under_noise(rows, ratio)
    told = sent_numbers((Masking(), noise), seen)
    assert float(told[~sent].float().mean()) < 0.02
    long = rows > 4 * noise.std
    assert long.sum() > 20 * count and float(told[long].float().mean()) > 0.95


@pytest.mark.parametrize("levels", [4, 5, 8, 16])
def test_rounding_at_random_hides_no_mask_unless_it_is_coarse(levels):
    rows, sent = masked(50, own=False)
    most = rows.abs().max()
    places = (rows / most + 1) / 2 * (levels - 1)
    places = (places + torch.rand(rows.shape, generator=stream(0, "rounding"))).floor()
    seen = (places.clamp(0, levels - 1) / (levels - 1) * 2 - 1) * most
    told = sent_numbers((Masking(), RandomRounding(levels)), seen)
    if levels % 2:  # 0 is a level and stays 0
        assert bool(told.all()) and bool((seen[~sent] == 0).all())
    elif levels == 4:
        assert bool(told.all())
    else:
        assert float((told != sent).float().mean()) < 0.05


@pytest.mark.parametrize("count", [1, 20])
def test_nothing_is_taken_for_empty_where_noise_drowns_it_or_nothing_else_came(count):
    rows, _ = masked(count, own=True)
    seen, noise = under_noise(rows, 4.0)
    assert bool(sent_numbers((Masking(), noise), seen).all())
    alone = noise.std * torch.randn(count, WIDTH, generator=stream(1, "alone"))
    assert bool(sent_numbers((Masking(), noise), alone).all())
    bad = torch.full((count, WIDTH), torch.nan)
    assert bool(sent_numbers((Masking(), noise), bad).all())


def observed(*steps: Value) -> Observation:
    """Prototypes of one client and a mixture of another; a row that no upload holds."""
    rows, _ = masked(6, own=False)
    noise = next(step for step in steps if isinstance(step, Noise))
    seen = rows + noise.std * torch.randn(rows.shape, generator=stream(0, "noise"))
    sent = Upload(0, 1, (Prototypes(seen[:5], torch.arange(5)),))
    mixed = Upload(1, 1, (EntangledRep(seen[5], torch.full((5,), 0.2)),))
    part = Upload(0, 1, (Prototypes(seen[[3, 1]], torch.tensor([3, 1])),))
    other = Upload(0, 1, (Prototypes(seen[:1] + 1, torch.zeros(1).long()),))
    return Observation(
        threat=threats.get("strong"), targets=(part, mixed, other), uploads=(sent, mixed),
        broadcasts=(), extractors={}, image_shape=(1, 8, 8), num_classes=5,
        defenses=(KnownDefense("own", {}, Channel(rows=steps)),),
    )  # fmt: skip


def test_targets_lose_what_their_uploads_lose():
    seen = observed(Masking(), ClippingStep(9.0), Noise(0.02))
    shown = with_masks_shown(seen)
    (sent,), (part,) = shown.uploads[0].artifacts, shown.targets[0].artifacts
    assert torch.equal(part.rows(), sent.rows()[[3, 1]])
    assert 0.2 < float((sent.rows() != 0).float().mean()) < 0.4
    own = seen.uploads[0].artifacts[0].rows()
    assert torch.equal(sent.rows()[sent.rows() != 0], own[sent.rows() != 0])
    mixed, whole = shown.targets[1].artifacts[0].rows(), shown.uploads[1].artifacts[0].rows()
    assert torch.equal(mixed, whole) and 0.05 < float((mixed != 0).float().mean()) < 0.4
    assert torch.equal(shown.targets[2].artifacts[0].rows(), seen.targets[2].artifacts[0].rows())


@pytest.mark.parametrize(
    "steps",
    [
        (Noise(0.02), Masking()),
        (Masking(), Noise(0.02), UnknownNoise()),
        (Masking(), Noise(0.02), ClippingStep(1.0)),
    ],
)
def test_masks_that_are_seen_or_cannot_be_leave_uploads_as_they_are(steps):
    seen = observed(*steps)
    assert with_masks_shown(seen) is seen
    naive = replace(seen, defenses=())
    assert with_masks_shown(naive) is naive


@pytest.mark.parametrize("kind", [GradientState, ModelState])
def test_pruned_numbers_of_updates_are_found_under_noise(kind):
    draws = stream(0, "update")
    before = {"a": torch.randn(60, 50, generator=draws), "b": torch.randn(50, generator=draws)}
    change = {name: torch.randn(t.shape, generator=draws) ** 3 for name, t in before.items()}
    limit = torch.cat([t.abs().flatten() for t in change.values()]).quantile(0.9)
    pruned = {name: t * (t.abs() > limit) for name, t in change.items()}
    noisy = {n: t + 0.3 * torch.randn(t.shape, generator=draws) for n, t in pruned.items()}
    received = before if kind is ModelState else {n: torch.zeros_like(t) for n, t in before.items()}
    upload = Upload(0, 1, (kind({n: received[n] + t for n, t in noisy.items()}),))
    seen = replace(
        observed(Masking(), Noise(0.02)),
        targets=(upload,),
        uploads=(upload,),
        broadcasts=(Broadcast(1, (0,), (ModelState(before),)),),
        defenses=(KnownDefense("own", {}, Channel(updates=(Masking(), Noise(0.3)))),),
    )
    shown = with_masks_shown(seen)
    for uploads in (shown.targets, shown.uploads):
        for name, tensor in uploads[0].artifacts[0].tensors().items():
            own = name.split("/")[-1]
            right = (tensor == received[own]) == (pruned[own] == 0)
            assert float(right.float().mean()) > 0.99
    blind = replace(seen, broadcasts=())
    same = with_masks_shown(blind).targets[0].artifacts[0].tensors()
    sent = upload.artifacts[0].tensors()
    assert all(torch.equal(same[n], sent[n]) for n in sent) == (kind is ModelState)
