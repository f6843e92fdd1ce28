"""The trained decoder, and searches that begin from its answer or from the linear one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.decoder import AmortisedDecoder
from fedre_privacy.attacks.diffusion import Diffusion
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Knowledge, Upload
from fedre_privacy.data.base import datasets
from fedre_privacy.models.split import Normalise

BRIEF = {"updates": 6, "width": 4, "batch": 40, "views": 1}
DRAWN = {"updates": 4, "width": 4, "layers": 2, "views": 1, "steps": 3, "samples": 2}
MAKERS = [
    lambda: AmortisedDecoder(**BRIEF),
    lambda: Diffusion(**DRAWN),
    lambda: LinearDecoder(views=1),
]


def psnr_db(images, truth):
    mse = (images - truth).square().flatten(1).mean(1)
    return float((-10 * mse.clamp(min=1e-12).log10()).mean())


class Box:
    def __init__(self, kept=None):
        self.kept, self.saved = dict(kept or {}), []

    def load(self, name):
        return self.kept.get(name)

    def save(self, name, tensors):
        self.saved.append(name)
        self.kept[name] = tensors


@pytest.fixture(scope="module")
def many():
    data = datasets.get("digits")(size=16, per_class=40).load()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    return data.images[order].float() / 255, data.labels[order]


def bent(seed):
    """An extractor that loses something and is not linear."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            Normalise(),
            nn.Conv2d(1, 8, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(288, 48),
            nn.ReLU(),
        )
    return net.eval().requires_grad_(False)


@pytest.fixture
def problem(many, observe):
    images, labels = many
    nets = {(0, 1): bent(0), (2, 1): bent(1)}
    reps = [net(images[8 * i : 8 * i + 8]) for i, net in enumerate(nets.values())]
    seen = observe(reps, nets, threat="strong")
    return replace(seen, aux=images[16:], aux_labels=labels[16:])


def with_reps(problem, change):
    targets = tuple(
        Upload(u.client, u.round, (replace(u.artifacts[0], reps=change(u.artifacts[0].reps)),))
        for u in problem.targets
    )
    return replace(problem, targets=targets)


@pytest.fixture
def floor(problem, many):
    return psnr_db(problem.aux.mean(0).expand(16, -1, -1, -1), many[0][:16])


def test_it_beats_the_floor_and_the_linear_answer(problem, many, floor):
    found = AmortisedDecoder(width=8, updates=60, views=2, stages=1)(problem)
    score = psnr_db(found.images, many[0][:16])
    assert score > floor + 2.5
    assert score > psnr_db(LinearDecoder(views=2)(problem).images, many[0][:16]) + 0.1
    assert bool((found.trace[-1].median() < found.trace[1].median()).all())


def test_noise_for_an_upload_tells_nothing(problem, many, floor):
    draw = torch.Generator().manual_seed(0)
    noise = with_reps(problem, lambda r: r[torch.randperm(8, generator=draw)].roll(1, 1))
    assert psnr_db(AmortisedDecoder(**BRIEF)(noise).images, many[0][:16]) < floor + 0.3


def test_a_sharp_decoder_matches_the_upload_better(problem):
    settings = BRIEF | {"updates": 30, "stages": 1, "width": 8}
    plain = AmortisedDecoder(**settings)(problem)
    sharp = AmortisedDecoder(**settings, loss="sharp", match=10.0)(problem)
    assert float(sharp.fit.mean()) < 0.95 * float(plain.fit.mean())


@pytest.mark.parametrize("kind", [AmortisedDecoder, Diffusion, LinearDecoder])
def test_a_weaker_threat_model_is_refused(kind, problem):
    weaker = replace(problem.threat, grants=kind.needs - {Knowledge.AUX_DATA})
    with pytest.raises(IncompatibleError, match="needs AUX-DATA"):
        kind()(replace(problem, threat=weaker))


@pytest.mark.parametrize("make", MAKERS)
def test_the_order_of_uploads_and_the_threads_change_nothing(make, problem):
    threads = torch.get_num_threads()
    first = make()(problem)
    turned = make()(replace(problem, targets=problem.targets[::-1]))
    assert torch.equal(turned.images, first.images.roll(8, 0))
    assert torch.equal(turned.fit, first.fit.roll(8, 0))
    try:
        torch.set_num_threads(3)
        assert torch.equal(make()(problem).images, first.images)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("make", MAKERS)
def test_a_killed_attack_goes_on_and_a_finished_one_is_read_back(make, problem):
    box = Box()
    whole = make()(problem, Context(cache=box))
    events = []
    again = Box(box.kept)
    assert torch.equal(
        make()(problem, Context(cache=again, report=events.append)).images, whole.images
    )
    assert again.saved == [] and events == []
    for name in sorted(box.saved):
        half = Box({name: box.kept[name]})
        assert torch.equal(make()(problem, Context(cache=half)).images, whole.images)
        assert name not in half.saved


def test_the_seed_decides(problem):
    attack = AmortisedDecoder(**BRIEF)
    torch.rand(3)
    before = torch.random.get_rng_state()
    first = attack(problem, Context(seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(attack(problem, Context(seed=1)).images, first.images)
    assert not torch.equal(attack(problem, Context(seed=2)).images, first.images)


def test_a_broken_extractor_harms_no_other(problem):
    broken = bent(0)
    broken[5].weight.fill_(torch.nan)
    found = AmortisedDecoder(**BRIEF)(
        replace(problem, extractors={**problem.extractors, (0, 1): broken})
    )
    assert found.diverged.tolist() == [True] * 8 + [False] * 8
    assert bool(found.images[8:].isfinite().all())


def test_kinds_are_learnt_apart(problem):
    one, other = problem.targets
    means = Prototypes(other.artifacts[0].reps, torch.arange(8))
    both = replace(problem, targets=(one, replace(other, artifacts=(means,))))
    box = Box()
    found = AmortisedDecoder(**BRIEF)(both, Context(cache=box))
    assert {name.split("-")[1] for name in box.saved} == {"single", "prototypes"}
    plain = AmortisedDecoder(**BRIEF, match_targets=False)(both)
    assert not torch.equal(found.images[8:], plain.images[8:])
    assert found.images.shape == (16, 1, 16, 16) and not bool(found.diverged.any())


# --- beginning from an answer ------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DeepImagePrior, PixelInversion])
def test_a_start_needs_auxiliary_images_and_no_start_does_not(kind, problem):
    weaker = replace(problem, threat=replace(problem.threat, grants=kind.needs), aux=None)
    kind(steps=1)(weaker)
    with pytest.raises(IncompatibleError, match="needs AUX-DATA"):
        kind(steps=1, start="linear")(weaker)
    assert Knowledge.AUX_DATA not in kind.needs


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DeepImagePrior, PixelInversion])
def test_a_search_begins_from_the_linear_answer(kind, problem):
    small = {"channels": (8,), "depth": 4} if kind is DeepImagePrior else {}
    answer = LinearDecoder()(problem)
    cold = kind(steps=1, **small)(problem)
    warm = kind(steps=1, start="linear", **small)(problem)

    def far(found):
        return float((found.images - answer.images).square().mean())

    assert far(warm) < 0.2 * far(cold)
    assert torch.equal(warm.prior, cold.prior)  # the floor knows nothing of the target
    turned = kind(steps=1, start="linear", **small)(replace(problem, targets=problem.targets[::-1]))
    assert torch.equal(turned.images, warm.images.roll(8, 0))


def test_a_start_is_kept_for_resume(problem):
    box = Box()
    whole = PixelInversion(steps=2, start="linear")(problem, Context(cache=box))
    begun = {name for name in box.saved if name.startswith("start-linear-")}
    assert len(begun) == 2
    half = Box({name: box.kept[name] for name in begun})
    again = PixelInversion(steps=2, start="linear")(problem, Context(cache=half))
    assert torch.equal(again.images, whole.images) and not begun & set(half.saved)
