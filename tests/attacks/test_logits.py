"""Images behind mean outputs: right over rounds, at the floor for noise and for others' outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.attacks.base import attacks, mismatch
from fedre_privacy.attacks.common.channels import clip_rows
from fedre_privacy.core.artifacts import ClassLogits
from fedre_privacy.core.channels import Channel, ClippingStep
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.types import KnownDefense, Observation, Upload
from fedre_privacy.experiments.attack import attack as play
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train
from fedre_privacy.threats.base import threats

CLASSES, ROUNDS, HELD = 10, 12, 8


def psnr(found, wanted):
    return float((-10 * (found - wanted).square().flatten(1).mean(1).log10()).mean())


@pytest.fixture(scope="module")
def small(digits):
    """120 real digits, 8x8, classes in turn, and their labels."""
    images = F.avg_pool2d(digits.images[:120].float() / 255, 2)
    return images, digits.labels[:120].long()


@pytest.fixture(scope="module")
def models():
    """A client's model of each round: an extractor and a head, each of weights of its own."""
    made = {}
    for number in range(1, ROUNDS + 1):
        with torch.random.fork_rng():
            torch.manual_seed(number)
            extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
            head = nn.Linear(32, CLASSES)
            nn.init.normal_(head.weight, std=1.0)
        made[number] = (extractor.eval(), head.eval())
    return made


@pytest.fixture
def world(small, models):
    """What a server sees of client 0; images behind each class are the first of their class."""

    def make(per_class=1, change=lambda rows: rows, kept=range(1, ROUNDS + 1), raw=False):
        images, labels = small
        own = torch.cat([(labels == c).nonzero().flatten()[:per_class] for c in range(HELD)])
        public = torch.ones(len(images), dtype=torch.bool)
        public[own] = False
        uploads = []
        for number, (extractor, head) in models.items():
            with torch.no_grad():
                rows = head(extractor(images[own]))
            rows = rows if raw else rows.softmax(1)
            rows = change(rows.reshape(HELD, per_class, -1).mean(1))
            uploads.append(Upload(0, number, (ClassLogits(rows, torch.arange(HELD)),)))
        seen = Observation(
            threat=threats.get("strong"),
            targets=(uploads[-1],),
            uploads=tuple(uploads),
            broadcasts=(),
            extractors={(0, r): models[r][0] for r in kept},
            heads={(0, r): models[r][1] for r in kept},
            image_shape=(1, 8, 8),
            num_classes=CLASSES,
            aux=images[public],
            aux_labels=labels[public],
        )
        wanted = images[own].reshape(HELD, per_class, 1, 8, 8).mean(1)
        return seen, wanted, psnr(images[public].mean(0).expand_as(wanted), wanted)

    return make


def test_outputs_of_many_rounds_tell_the_image_and_one_round_less(world):
    seen, wanted, floor = world()
    every = attacks.get("logits")()(seen)
    assert every.stopped_because == f"closed form; rounds read: {ROUNDS}"
    alone = attacks.get("logits")(rounds=1)(seen)
    assert psnr(every.images, wanted) > floor + 2.5
    assert psnr(every.images, wanted) > psnr(alone.images, wanted) + 1
    gaps = (every.images[:, None] - wanted[None]).square().flatten(2).sum(2)
    assert (gaps.argmin(1) == torch.arange(HELD)).float().mean() > 0.8
    assert psnr(every.images, wanted.roll(1, 0)) < floor


def test_true_images_explain_outputs_and_others_less(world):
    for raw in (False, True):
        seen, wanted, _ = world(raw=raw)
        none = torch.zeros(0, dtype=torch.int64)
        own = attacks.get("logits")().explained(seen, wanted, none)
        swapped = attacks.get("logits")().explained(seen, wanted.roll(1, 0), none)
        assert float(own.min()) > 0.9999 and bool((swapped < own - 1e-3).all())


def test_noise_in_place_of_the_outputs_gives_the_floor(world):
    rng = torch.Generator().manual_seed(0)
    seen, wanted, floor = world(change=lambda r: torch.randn(r.shape, generator=rng).softmax(1))
    assert psnr(attacks.get("logits")()(seen).images, wanted) < floor + 0.3


def test_what_is_rounded_away_tells_less(world):
    def rounded(digits):
        seen, wanted, _ = world(change=lambda r: (r * 10**digits).round() / 10**digits)
        return psnr(attacks.get("logits")()(seen).images, wanted)

    exact, wanted, _ = world()
    best = psnr(attacks.get("logits")()(exact).images, wanted)
    assert rounded(3) > best - 1 and rounded(1) < best - 1


def test_means_of_several_images_and_raw_outputs_are_read_too(world):
    for more in ({"per_class": 4}, {"raw": True}):
        seen, wanted, floor = world(**more)
        assert psnr(attacks.get("logits")()(seen).images, wanted) > floor + 2


def test_a_declared_bound_is_learnt_from(world):
    seen, wanted, floor = world(change=lambda rows: clip_rows(rows, 0.3))
    clip = KnownDefense("clip", {"norm": 0.3}, Channel(rows=(ClippingStep(0.3),)))
    told = replace(seen, defenses=(clip,))
    attack = attacks.get("logits")()
    assert attack.adapts(told) == {"rows": attack.adapts_to["rows"]}
    naive, adaptive = (psnr(attack(one).images, wanted) for one in (seen, told))
    assert adaptive > naive and adaptive > floor + 1


def test_rows_come_back_in_their_order_whatever_rounds_a_class_was_in(world):
    seen, _, _ = world()
    cut = tuple(
        replace(u, artifacts=(u.artifacts[0].take(torch.arange(4, HELD)),)) if u.round < 4 else u
        for u in seen.uploads
    )
    whole, part = (attacks.get("logits")()(one) for one in (seen, replace(seen, uploads=cut)))
    torch.testing.assert_close(part.images[4:], whole.images[4:])
    assert not torch.allclose(part.images[:4], whole.images[:4])
    assert part.stopped_because == "closed form; rounds read: 9, 12"


def test_one_kept_round_of_many_is_refused_unless_it_is_asked_for(world):
    seen, _, _ = world(kept=[ROUNDS])
    with pytest.raises(IncompatibleError, match="client 0 uploaded in 12 rounds, and models of 1"):
        attacks.get("logits")()(seen)
    assert len(attacks.get("logits")(rounds=1)(seen).images) == HELD


def test_who_lacks_the_private_heads_is_refused():
    (*_, heads) = sorted(mismatch(attacks.get("logits"), threats.get("fedre-paper"), {ClassLogits}))
    assert "needs HEADS" in heads
    problems = mismatch(attacks.get("logits"), threats.get("realistic"), {ClassLogits})
    assert len(problems) == 3 and all("threat model 'realistic' grants" in p for p in problems)
    assert mismatch(attacks.get("logits"), threats.get("strong"), {ClassLogits}) == []


def training(**record):
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 12},
        "partition": {"name": "pra", "alpha": 0.5},
        "model": {"name": "cnn4", "dim": 32},
        "train": {"clients": 3, "rounds": 3, "batch_size": 8},
        "protocol": {"name": "fd"},
        "record": record,
    }
    problems: list[str] = []
    made = resolve_training(values, {}, problems)
    assert made is not None, problems
    return made


@pytest.mark.slow
def test_a_run_of_fd_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {
        "attack": {"name": "logits"},
        "threat": "strong",
        "eval": {"targets": 6, "metrics": ("psnr",), "public": 60},
    }
    asked = resolve_attack(values, {}, [])
    with pytest.raises(ConfigError, match="record.keep_every=1"):
        check_ahead(training(keep_every=3), asked)
    check_ahead(training(), asked)
    run = train(training(), runs=tmp_path)
    assert run.kept_rounds() == [1, 2, 3]
    assert isinstance(run, Run)
    done = play(run, asked)
    assert done.card.get("psnr").n == 6
    assert (done.folder / "record.json").exists()
