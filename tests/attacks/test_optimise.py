"""The optimisation loop: routing, restarts, the running mean, early stop, and what it can reach."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common import tiles
from fedre_privacy.attacks.common.objectives import l2rel
from fedre_privacy.attacks.common.tiling import in_tiles_of
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.inversion import search_settings as image_search
from fedre_privacy.attacks.inversion.gradient_descent import (
    Budget,
    better_of,
    by_owner,
    fit_tile,
    spread_of,
)
from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.errors import OutOfMemoryError
from fedre_privacy.core.types import Upload


@dataclass(frozen=True)
class Free:
    """Pixels that are the parameters themselves, a uniform start from each stream."""

    side: int = 4

    def start(self, generators: Sequence[torch.Generator]) -> tuple[list[Tensor], list[Tensor]]:
        return [
            torch.stack([torch.rand(1, self.side, self.side, generator=g) for g in generators])
        ], []

    def images(
        self, parameters: Sequence[Tensor], constants: Sequence[Tensor], progress: float
    ) -> Tensor:
        return parameters[0].clone()


def flat(images: Tensor) -> Tensor:
    return images.flatten(1)


def targets(count: int) -> Tensor:
    return torch.rand(count, 16, generator=torch.Generator().manual_seed(9)) + 0.1


def fit(budget: Budget, wanted: Tensor, *, first_index: int = 0, seed: int = 0, **more):
    first = 1000 * seed + first_index * budget.restarts
    seeds = range(first, first + len(wanted) * budget.restarts)
    return fit_tile(Free(), flat, wanted, l2rel, budget, seeds=seeds, **more)


STILL = Budget(steps=1, lr=1e-12)
"""Too short to move: what comes back is the start."""


# --- which extractor sees which image ------------------------------------------------------------


def test_every_row_goes_through_its_own_extractor():
    class Times(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor, self.batches = factor, []

        def forward(self, images: Tensor) -> Tensor:
            self.batches.append(len(images))
            return images.flatten(1) * self.factor

    nets = {(0, 1): Times(1.0), (0, 2): Times(2.0), (3, 1): Times(3.0)}
    owners = [(0, 1), (0, 1), (0, 2), (3, 1), (3, 1), (3, 1), (0, 1)]
    images = torch.rand(7, 1, 2, 2)
    found = by_owner(nets, owners)(images)
    for i, owner in enumerate(owners):
        assert torch.equal(found[i], images[i].flatten() * nets[owner].factor)
    assert nets[3, 1].batches == [3] and nets[0, 1].batches == [2, 1]  # neighbours as one batch


# --- restarts ------------------------------------------------------------------------------------


def test_a_restart_is_chosen_by_its_match():
    wanted, restarts = targets(3), 5
    best = fit(replace(STILL, restarts=restarts), wanted)
    for i in range(3):
        alone = [
            fit(STILL, wanted[i : i + 1], first_index=i * restarts + r) for r in range(restarts)
        ]
        fits = [float(f.fit) for f in alone]
        assert len(set(fits)) == restarts
        chosen = alone[fits.index(min(fits))]
        assert float(best.fit[i]) == min(fits)
        assert torch.equal(best.images[i], chosen.images[0])
        assert torch.equal(best.prior[i], alone[0].prior[0])  # whichever the upload chose
        assert float(best.trace[0, i]) == float(chosen.trace[0, 0])


def test_mean_is_the_average_of_the_restarts():
    wanted, restarts = targets(3), 4
    budget = Budget(steps=20, lr=0.05, restarts=restarts, combine="mean")
    mean = fit(budget, wanted)
    for i in range(3):
        single = Budget(steps=20, lr=0.05)
        alone = [
            fit(single, wanted[i : i + 1], first_index=i * restarts + r).images[0]
            for r in range(restarts)
        ]
        average = torch.stack(alone).mean(0)
        assert torch.allclose(mean.images[i], average, atol=1e-6)
        assert float(mean.fit[i]) == pytest.approx(
            float(l2rel(flat(average[None]), wanted[i : i + 1])), rel=1e-4
        )


def test_a_diverged_restart_is_not_chosen():
    wanted = targets(2)

    def extract(images: Tensor) -> Tensor:
        reps = flat(images)
        return torch.cat([reps[:1] * torch.nan, reps[1:]])  # first restart of the first target

    found = fit_tile(
        Free(), extract, wanted, l2rel, Budget(steps=3, lr=0.01, restarts=2), seeds=range(4)
    )
    assert bool(found.images.isfinite().all()) and bool(found.fit.isfinite().all())


# --- the running mean ----------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95])
def test_the_answer_is_the_running_mean_of_the_images(decay):
    seen: list[Tensor] = []

    def extract(images: Tensor) -> Tensor:
        seen.append(images.detach().clone())
        return flat(images)

    budget = Budget(steps=12, lr=0.05, average=decay)
    found = fit_tile(Free(), extract, targets(2), l2rel, budget, seeds=range(2))
    shown, last = seen[:-1], seen[-1]  # the last pass measures the answer
    assert len(shown) == 12
    mean = shown[0]
    for image in shown[1:]:
        mean = decay * mean + (1 - decay) * image
    assert torch.allclose(found.images, mean, atol=1e-6)
    assert torch.equal(found.images, last)
    assert torch.equal(found.prior, shown[0])
    assert torch.equal(found.fit, l2rel(flat(found.images), targets(2)))


# --- the loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "tv"), [("plain", 0.0), ("plain", 0.3), ("log", 0.0), ("log", 2.0)]
)
def test_the_first_step_follows_the_stated_loss(loss, tv):
    wanted = targets(2)
    budget = Budget(steps=2, lr=0.01, average=0.0, loss=loss, tv=tv)
    found = fit(budget, wanted)
    x = found.prior.clone().double().requires_grad_()
    match = (x.flatten(1) - wanted).square().sum(1) / wanted.square().sum(1)
    dx = (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3))
    dy = (x[..., 1:, :] - x[..., :-1, :]).abs().mean((1, 2, 3))
    value = (match.log() if loss == "log" else match) + tv * (dx + dy)
    (grad,) = torch.autograd.grad(value.sum(), x)
    moved = found.images - found.prior  # the first step of Adam is lr times the sign
    assert torch.allclose(moved.double(), -0.01 * grad.sign(), atol=1e-4)


def test_warm_up_rises_and_the_cosine_falls_to_the_floor():
    from fedre_privacy.attacks.inversion.gradient_descent import _schedule

    budget = Budget(steps=110, lr=1.0, warmup=10, lr_floor=0.1)
    rates = [_schedule(step, budget) for step in range(110)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10] == 1 and rates[60] == pytest.approx(0.55)
    assert rates[109] == pytest.approx(0.1, abs=1e-3) and min(rates[10:]) >= 0.1


# --- traces and early stop -----------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 7, 50, 51, 130])
def test_the_trace_has_first_and_last_step_and_few_points(steps):
    ticks = []
    found = fit(Budget(steps=steps, lr=0.01), targets(2), tick=lambda s, m: ticks.append((s, m)))
    logged = found.trace_steps.tolist()
    assert logged[0] == 0 and logged[-1] == steps - 1 and logged == sorted(set(logged))
    assert len(logged) <= 100 and found.steps == steps
    assert [s for s, _ in ticks] == logged
    assert torch.equal(torch.stack([m for _, m in ticks]), found.trace)
    assert float(found.trace[0, 0]) == float(l2rel(flat(found.prior), targets(2))[0])


def test_patience_ends_what_no_longer_improves():
    found = fit(Budget(steps=2000, lr=1e-9, patience=60), targets(2))
    assert 60 < found.steps < 200
    assert found.trace_steps[-1] == found.steps - 1


def test_patience_waits_for_the_last_target():
    wanted = targets(2)
    start = fit(STILL, wanted).prior
    wanted[0] = start[0].flatten()  # found before the first step; the other one still improves
    alone = fit(Budget(steps=400, lr=0.01, patience=10, loss="plain"), wanted[:1])
    both = fit(Budget(steps=400, lr=0.01, patience=10, loss="plain"), wanted)
    assert alone.steps < both.steps


class Drift(Free):
    """Three rows that begin at their target, in float64, and a fourth that is long under way."""

    WANTED = torch.rand(4, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def start(self, generators):
        rows = self.WANTED.reshape(4, 1, 4, 4).clone()
        rows[3] -= 5
        return [rows[: len(generators)]], [torch.arange(len(generators), dtype=torch.float64)]

    def images(self, parameters, constants, progress):
        assert len(constants[0]) == len(parameters[0])
        return parameters[0] + (0 * constants[0])[:, None, None, None]


def drift(patience: int, nets=None, **more):
    sizes: list[int] = []
    owners = [(0, 1), (0, 2), (0, 1), (3, 1)]
    nets = nets or dict.fromkeys(owners, nn.Flatten())

    def some(rows: list[int]):
        sizes.append(len(rows))
        return by_owner(nets, [owners[i] for i in rows])

    wanted = torch.stack([nets[key](row) for key, row in zip(owners, Drift.WANTED, strict=True)])
    budget = Budget(steps=200, lr=0.02, loss="plain", patience=patience, lr_floor=1.0, **more)
    search = fit_tile(
        Drift(),
        some([0, 1, 2, 3]),
        wanted,
        l2rel,
        budget,
        seeds=range(4),
        extract_some=some,
    )
    return search, sizes


class Scaled(nn.Flatten):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        return self.factor * (super().forward(images) if images.ndim > 1 else images)


def test_rows_that_are_done_leave_the_program():
    nets = {(0, 1): Scaled(1.0), (0, 2): Scaled(2.0), (3, 1): Scaled(-3.0)}
    (all_along, all_sizes), (fewer, sizes) = drift(0, nets), drift(10, nets)
    assert all_sizes == [4] and sizes == [4, 1]
    assert fewer.steps == all_along.steps == 200
    for name in ("images", "prior", "fit"):  # the one left ends where it would have
        left, whole = getattr(fewer, name)[3], getattr(all_along, name)[3]
        assert torch.allclose(left, whole, rtol=1e-12, atol=1e-12)
    assert torch.allclose(fewer.trace[:, 3], all_along.trace[:, 3], rtol=1e-9)
    assert torch.equal(fewer.trace_steps, all_along.trace_steps)


def test_a_row_that_is_done_keeps_its_answer():
    """Its images go on to move under Adam while others are awaited; its answer does not."""
    wanted = targets(3)
    wanted[1] = fit(STILL, wanted).prior[1].flatten()
    budget = Budget(steps=400, lr=0.01, patience=10, loss="plain", tv=0.1)
    together = fit(budget, wanted)
    for i in range(3):
        seen: list[Tensor] = []

        def extract(images: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(images.detach().clone())
            return flat(images)

        alone = fit_tile(Free(), extract, wanted[i : i + 1], l2rel, budget, seeds=[i])
        mean = seen[0]
        for image in seen[1 : alone.steps]:
            mean = budget.average * mean + (1 - budget.average) * image
        assert len(seen) == alone.steps + 1 and torch.allclose(alone.images, mean, atol=1e-6)
        assert torch.allclose(together.images[i], alone.images[0], atol=1e-6)
        logged = len(alone.trace)
        assert torch.allclose(together.trace[:logged, i], alone.trace[:, 0], rtol=1e-3)
        assert bool((together.trace[logged:, i] == together.trace[logged - 1, i]).all())
    assert fit(budget, wanted[1:2], first_index=1).steps < together.steps


def test_restarts_are_given_up_one_by_one():
    wanted = targets(2)
    wanted[0] = fit(STILL, wanted).prior[0].flatten()
    both = Budget(steps=300, lr=0.01, patience=10, loss="plain", restarts=2)
    found = fit(both, wanted)
    once = replace(both, restarts=1)
    for i in range(2):
        alone = [fit(once, wanted[i : i + 1], first_index=2 * i + r) for r in range(2)]
        least = min(alone, key=lambda one: float(one.fit))
        assert torch.allclose(found.images[i], least.images[0], atol=1e-6)


def test_without_patience_the_whole_budget_is_spent():
    assert fit(Budget(steps=300, lr=1e-9), targets(1)).steps == 300


def test_the_reason_for_stopping_is_stated(observe, rotation):
    problem = observe([torch.ones(2, 256)], {(0, 1): rotation()})
    assert PixelInversion(steps=20)(problem).stopped_because == "budget spent"
    early = PixelInversion(steps=400, lr=1e-9, patience=5)(problem)
    assert early.stopped_because == "no further improvement"
    assert int(early.trace_steps[-1]) < 399


# --- what can be reached -------------------------------------------------------------------------


def test_a_lossless_extractor_gives_the_images_back(observe, rotation, originals):
    net = rotation()
    found = PixelInversion(steps=300, tv=0.0, average=0.0)(observe([net(originals)], {(0, 1): net}))
    mse = (found.images - originals).square().flatten(1).mean(1)
    assert float((-10 * mse.log10()).min()) > 40
    assert bool((found.fit < 1e-4).all())


@pytest.mark.slow
def test_a_search_that_goes_nowhere_is_begun_anew(observe, rotation, originals, monkeypatch):
    class Sometimes(Free):
        """Half of its starts answer one picture whatever is asked of them."""

        def start(self, generators):
            alive = torch.stack([torch.rand(1, generator=g) > 0.5 for g in generators])
            parameters, _ = super().start(generators)
            return parameters, [alive[..., None, None].float()]

        def images(self, parameters, constants, progress):
            return parameters[0] * constants[0] + (1 - constants[0])

    net = rotation()
    rows = net(originals.repeat(4, 1, 1, 1))
    problem = observe([rows], {(0, 1): net})

    def fits(stuck: float) -> Tensor:
        monkeypatch.setattr(image_search, "STUCK", stuck)
        attack = PixelInversion(steps=200, lr=0.05, average=0.0, tv=0.0)
        monkeypatch.setattr(PixelInversion, "prior_for", lambda *_: Sometimes(16))
        return attack.run(problem, Context()).fit

    once, again = fits(math.inf), fits(0.5)
    assert 0 < int((again > 0.1).sum()) < int((once > 0.1).sum()) < len(once)
    assert bool((again <= once).all()) and torch.equal(again[once < 0.1], once[once < 0.1])


def test_more_total_variation_gives_smoother_images(observe, rotation, originals):
    net = rotation()
    problem = observe([net(originals)], {(0, 1): net})
    rough, smooth = (PixelInversion(steps=60, tv=tv)(problem).images for tv in (0.0, 30.0))
    assert float(smooth.diff(dim=3).abs().mean()) < 0.5 * float(rough.diff(dim=3).abs().mean())


# --- tiles ---------------------------------------------------------------------------------------


def test_extractors_of_others_are_not_touched(observe, rotation):
    class Untouchable(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise AssertionError("this client is not attacked")

    problem = observe([torch.ones(1, 256)], {(0, 1): rotation()})
    extractors = {**problem.extractors, (1, 1): Untouchable(), (0, 0): Untouchable()}
    found = PixelInversion(steps=2)(replace(problem, extractors=extractors))
    assert len(found.images) == 1


@pytest.mark.parametrize(("restarts", "tiles"), [(1, 2), (2, 4), (4, 5), (8, 10), (16, 10)])
def test_restarts_share_a_tile(observe, rotation, restarts, tiles):
    names = []

    class ResultCache:
        def load(self, name: str) -> None:
            names.append(name)

        def save(self, name: str, tensors: dict[str, Tensor]) -> None:
            assert tensors["images"].shape[0] == len(range(*map(int, name.split("-")[1:])))

    problem = observe([torch.rand(10, 256)], {(0, 1): rotation()})
    found = PixelInversion(steps=2, restarts=restarts)(problem, Context(cache=ResultCache()))
    assert len(found.images) == 10 and len(set(names)) == len(names) == tiles


def test_rounds_of_one_client_have_their_own_extractors(observe, rotation, originals):
    nets = {(0, 2): rotation(0), (0, 1): rotation(1)}
    reps = [net(originals[:2]) for net in nets.values()]
    found = PixelInversion(steps=200, tv=1.0)(observe(reps, nets))
    expected = originals[[0, 1, 0, 1]]
    assert float((found.images - expected).square().mean()) < 1e-3
    # the same targets under the other round's extractor are not found
    wrong = dict(zip(nets, reversed(list(nets.values())), strict=True))
    lost = PixelInversion(steps=200, tv=1.0)(observe(reps, wrong))
    assert float((lost.images - expected).square().mean()) > 0.05


def test_several_uploads_of_one_owner_are_kept_apart(observe, rotation, originals):
    net = rotation()
    reps = net(originals[:2])
    problem = observe([reps], {(0, 1): net})
    parts = [Representations(reps[i : i + 1], torch.zeros(1).long()) for i in range(2)]
    split = replace(problem, targets=tuple(Upload(0, 1, (part,)) for part in parts))
    attack = PixelInversion(steps=5)
    assert torch.equal(attack(split).images, attack(problem).images)


@pytest.mark.parametrize(
    ("free", "per_row", "rows"),
    [(1000, 100, 8), (1000, 1, 512), (10**9, 1, 1024), (99, 100, 1), (0, 0, 1), (1000, 106, 8)],
)
def test_as_many_rows_as_fit(free, per_row, rows):
    """A power of two of them within 85 % of what is free, at least 1 and at most 1024."""
    assert tiles.rows_that_fit(free, per_row, most=1024) == rows


class TestMeasuredRows:
    """A GPU that says what is free and what a trial took."""

    device = torch.device("cuda", 0)

    @pytest.fixture(autouse=True)
    def gpu(self, monkeypatch):
        self.peak = 0
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda _: setattr(self, "peak", 0))
        monkeypatch.setattr(cuda, "memory_allocated", lambda _: 50)
        monkeypatch.setattr(cuda, "max_memory_allocated", lambda _: 50 + self.peak)
        monkeypatch.setattr(cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(cuda, "mem_get_info", lambda _: (10_000, 80_000))

    def trial(self, per_row: int, lasting: int = 0):
        left = [lasting]

        def run(rows: int) -> None:
            self.peak = rows * per_row + (left.pop() if left else 0)

        return run

    def test_the_largest_kind_of_row_decides(self):
        trials = [self.trial(10), self.trial(100), self.trial(20)]
        assert tiles.measured_rows(trials, self.device) == 64  # 85 of them
        assert tiles.measured_rows(trials[:1], self.device) == 512

    def test_workspaces_that_last_are_not_counted(self):
        assert tiles.measured_rows([self.trial(10, lasting=9000)], self.device) == 512

    def test_a_full_gpu_gets_one_row(self):
        def full(rows: int) -> None:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        assert tiles.measured_rows([full], self.device) == 1

    def test_a_device_that_does_not_tell(self):
        assert tiles.measured_rows([], torch.device("mps")) == 256


class TestFullMemory:
    """A GPU that is full: tiles are halved until they fit."""

    @staticmethod
    def pieces(fits: int, count: int, tile: int) -> tuple[list[int], list[str]]:
        notes: list[str] = []

        def work(numbers: list[int], tick) -> dict[str, Tensor]:
            if len(numbers) > fits:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            sizes.append(len(numbers))
            return {"rows": torch.tensor(numbers), "trace": torch.zeros(1, len(numbers))}

        sizes: list[int] = []
        report, device = lambda event: notes.append(event.data["text"]), torch.device("cuda")
        context = Context(report=report, device=device)
        made = in_tiles_of(work, range(count), context, steps=1, cpu=1, gpu=tile)
        assert made["rows"].tolist() == list(range(count))
        return sizes, notes

    def test_everything_fits(self):
        assert self.pieces(8, 20, 8) == ([8, 8, 4], [])

    def test_halved_until_it_fits(self):
        sizes, notes = self.pieces(3, 20, 8)
        assert sizes == [2] * 10
        assert notes == ["GPU memory: chunk halved to 4", "GPU memory: chunk halved to 2"]

    def test_not_even_one(self):
        with pytest.raises(OutOfMemoryError, match="single target") as caught:
            self.pieces(0, 20, 8)
        assert "0 of 20" in str(caught.value) and "--resume" in str(caught.value)


def test_a_budget_without_steps_is_refused():
    with pytest.raises(ValueError, match="zero steps"):
        fit(Budget(steps=0, lr=0.1), targets(1))


def test_the_log_keeps_a_found_target_finite():
    wanted = targets(1)
    start = fit(STILL, wanted).prior
    found = fit(Budget(steps=5, lr=1e-6), start.flatten(1))
    assert math.isfinite(float(found.fit)) and float(found.trace[0, 0]) == 0


# --- how far restarts end apart ------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [2, 3, 5])
def test_spread_is_the_mean_squared_distance_of_two_restarts(restarts):
    answers = torch.rand(4, restarts, 3, 2, 2, dtype=torch.float64)
    pairs = list(itertools.combinations(range(restarts), 2))
    for target, found in zip(answers, spread_of(answers), strict=True):
        apart = [float((target[a] - target[b]).square().mean()) for a, b in pairs]
        assert float(found) == pytest.approx(sum(apart) / len(pairs))


def test_one_start_has_no_spread(observe, rotation):
    assert spread_of(torch.rand(4, 1, 3, 2, 2)).shape == (0,)
    problem = observe([torch.rand(3, 256)], {(0, 1): rotation()})
    assert PixelInversion(steps=2)(problem).spread.shape == (0,)


@pytest.mark.parametrize("combine", ["best", "mean"])
def test_spread_is_of_the_restarts_whatever_is_answered(combine):
    wanted, single = targets(3), Budget(steps=20, lr=0.05)
    both = fit(replace(single, restarts=2, combine=combine), wanted)
    for i in range(3):
        one, other = (fit(single, wanted[i : i + 1], first_index=2 * i + r) for r in range(2))
        apart = float((one.images - other.images).square().mean())
        assert float(both.spread[i]) == pytest.approx(apart, rel=1e-3) and apart > 0


def test_spread_goes_with_its_target_and_with_the_search_that_is_kept(observe, rotation):
    """Targets are searched for in the order of their clients and come back in their own."""
    nets = {(1, 1): rotation(1), (0, 1): rotation(0)}
    rows = [torch.rand(3, 256), torch.rand(2, 256)]
    attack = PixelInversion(steps=30, restarts=2)
    both = attack(observe(rows, nets)).spread
    alone = [
        attack(observe([r], {k: n})).spread for r, (k, n) in zip(rows, nets.items(), strict=True)
    ]
    assert torch.allclose(both, torch.cat(alone), rtol=1e-4)
    found = fit(Budget(steps=2, lr=0.1, restarts=2), targets(3))
    better = replace(found, fit=found.fit[1:2] / 2, spread=torch.tensor([9.0]))
    better = replace(better, images=found.images[1:2], trace=found.trace[:, 1:2])
    kept = better_of(found, [1], better).spread
    assert kept[1] == 9 and torch.equal(kept[[0, 2]], found.spread[[0, 2]])


@pytest.mark.slow
def test_spread_marks_what_an_upload_leaves_open(observe, originals):
    """Behind one extractor that tells all and one that keeps 32 numbers of 256."""

    def random(outputs: int) -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(256, outputs), nn.Linear(outputs, 256))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for layer in (net[1], net[2]):
                nn.init.orthogonal_(layer.weight)
                nn.init.zeros_(layer.bias)
        return net.eval().requires_grad_(False)

    nets = {(0, 1): random(256), (1, 1): random(32)}
    seen = observe([net(originals[:6]) for net in nets.values()], nets)
    found = PixelInversion(steps=250, restarts=2, tv=0.5, loss="log")(seen)
    error = (found.images - originals[:6].repeat(2, 1, 1, 1)).square().flatten(1).mean(1)
    assert float(found.spread[6:].min()) > 3 * float(found.spread[:6].max())
    assert float(error[6:].min()) > 3 * float(error[:6].max())


@pytest.mark.slow
def test_noise_is_not_made_to_look_certain(observe, rotation, originals):
    """No picture has these uploads: the match says so, and starts do not agree any better."""
    net = rotation()
    real = net(originals[:3])
    noise = torch.randn(real.shape, generator=torch.Generator().manual_seed(1))
    noise *= real.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
    attack = DeepImagePrior(steps=120, channels=(8, 8), skip=2, depth=4, tv=1.0, restarts=2)
    found = attack(observe([torch.cat([real, noise])], {(0, 1): net}))
    assert float(found.fit[3:].min()) > 5 * float(found.fit[:3].max())
    assert float(found.spread[3:].mean()) > float(found.spread[:3].mean())
