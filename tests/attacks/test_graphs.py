"""Captured steps: they do what plain steps do, or plain steps are made instead.

A GPU is not needed: a tape captures as a CUDA graph does (tests/tape.py).
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks import decoder
from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.objectives import l2rel
from fedre_privacy.attacks.decoder import AmortisedDecoder
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.gradients.matching import UpdateMatch, gradient
from fedre_privacy.attacks.gradients.objectives import cosine
from fedre_privacy.attacks.gradients.search import SearchResult, signed_adam
from fedre_privacy.attacks.gradients.victims import Victim
from fedre_privacy.attacks.inversion import search_settings as inversion
from fedre_privacy.attacks.inversion.gradient_descent import Budget, TileResult, fit_tile
from fedre_privacy.attacks.update_inversion import LocalSteps
from fedre_privacy.core.cuda_graphs import CudaGraphCapture, capture_for, capture_step, side_stream

Tape = runpy.run_path(str(Path(__file__).parent.parent / "tape.py"))["Tape"]

COUNT = 5


class Refuses:
    """A capturer that runs the step, as a warm-up does, and then cannot capture it."""

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        step()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


class Frozen:
    """A capturer whose replay computes the match but moves nothing."""

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


@dataclass(frozen=True)
class Pixels:
    """Pixels in float64 that fade in over the budget."""

    read: Callable[[object], object] = field(default=lambda progress: progress)

    def start(self, generators):
        draws = [torch.rand(1, 4, 4, generator=g, dtype=torch.float64) for g in generators]
        return [torch.stack(draws)], [torch.arange(float(len(draws))).reshape(-1, 1, 1, 1)]

    def images(self, parameters, constants, progress):
        return torch.sigmoid(parameters[0] * (1 + self.read(progress))) + 0.01 * constants[0]


@pytest.fixture(autouse=True)
def capturable_on_a_cpu(monkeypatch):
    """Adam keeps its count of steps in a tensor on request only where graphs exist."""
    adam = sys.modules[torch.optim.Adam.__module__]
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda **_: ["cpu", "cuda"])


SHORT = Budget(steps=6, lr=0.05, tv=0.5)


def fit(budget: Budget, prior=None, **more) -> TileResult:
    wanted = torch.rand(
        COUNT, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    ).clamp(0.1)
    rows = COUNT * budget.restarts
    return fit_tile(
        prior or Pixels(),
        lambda images: images.flatten(1),
        wanted,
        l2rel,
        budget,
        seeds=range(rows),
        **more,
    )


def assert_same(one: TileResult, other: TileResult, tolerance: float = 1e-9) -> None:
    """Plain Adam counts its steps in Python, the capturable one in float32: 1e-5 apart at first."""
    for name in ("images", "prior", "fit", "trace", "trace_steps"):
        a, b = getattr(one, name).double(), getattr(other, name).double()
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), name
    assert one.steps == other.steps


@pytest.mark.parametrize("loss", ["log", "plain"])
@pytest.mark.parametrize("restarts", [1, 2])
def test_captured_steps_equal_plain_ones(loss, restarts):
    """Step size, clock, running mean and trace all come from buffers that the replay reads."""
    budget = Budget(steps=40, lr=0.05, warmup=5, tv=0.5, loss=loss, restarts=restarts)
    tape, notes = Tape(), []
    found = fit(budget, capturer=tape, note=notes.append)
    assert_same(fit(budget, capturer=Refuses()), found)
    assert_same(fit(budget), found, 1e-2)
    assert tape.captures == 1 and notes == []
    assert tape.replays == 2 + budget.steps - 1  # two to check; the first step is a plain one


def test_rows_given_up_leave_a_smaller_capture():
    budget, tape = Budget(steps=300, lr=0.05, patience=15), Tape()
    assert_same(fit(budget, capturer=Refuses()), fit(budget, capturer=tape))
    assert tape.captures > 1


def test_whole_attacks_are_captured(observe, rotation, originals, monkeypatch):
    net = rotation()
    problem = observe([net(originals[:3])], {(0, 1): net})
    attack = DeepImagePrior(steps=6, channels=(4,), skip=2, depth=2)
    plain, tape = attack(problem), Tape()
    monkeypatch.setattr(inversion, "capture_for", lambda device: tape)
    found = attack(problem)
    assert tape.replays > 0
    assert torch.allclose(found.images, plain.images, atol=1e-3)
    assert torch.allclose(found.trace, plain.trace, rtol=1e-3)


def test_a_prior_that_reads_the_clock_on_the_host_is_not_captured():
    notes: list[str] = []
    prior = Pixels(read=float)
    found = fit(SHORT, prior, capturer=Tape(), note=notes.append)
    assert_same(fit(SHORT, prior), found, 1e-5)
    assert len(notes) == 1 and "not permitted" in notes[0]


@pytest.mark.parametrize(
    ("capturer", "why"), [(Refuses(), "not permitted"), (Frozen(), "other numbers")]
)
def test_what_cannot_be_captured_runs_as_before(capturer, why):
    notes: list[str] = []
    assert_same(fit(SHORT), fit(SHORT, capturer=capturer, note=notes.append), 1e-5)
    assert len(notes) == 1 and why in notes[0] and "\n" not in notes[0]


def test_what_cannot_be_captured_is_not_tried_again():
    notes: list[str] = []
    found = fit(budget := Budget(steps=300, lr=0.05, patience=15), capturer=Refuses())
    assert_same(found, fit(budget, capturer=Frozen(), note=notes.append))
    assert len(notes) == 1


def test_capture_leaves_no_trace():
    value, match = torch.zeros(3), torch.ones(3)

    def step() -> None:
        value.add_(1)
        match.mul_(0.5)

    assert capture_step(step, Tape(), state=[value, match], match=match, note=print) is not None
    assert value.tolist() == [0] * 3 and match.tolist() == [1] * 3


def test_an_error_of_the_step_itself_is_not_hidden():
    def step() -> None:
        raise RuntimeError("wrong shapes")

    with pytest.raises(RuntimeError, match="wrong shapes"):
        capture_step(step, Tape(), state=[], match=torch.ones(1), note=print)


def test_one_note_for_all_tiles(observe, rotation, originals, monkeypatch):
    net, notes = rotation(), []
    problem = observe([net(originals)], {(0, 1): net})
    monkeypatch.setattr(inversion, "capture_for", lambda device: Refuses())
    context = Context(report=lambda event: event.name == "note" and notes.append(event.data))
    DeepImagePrior(steps=2, channels=(4,), skip=2, depth=2)(problem, context)  # two tiles
    assert len(notes) == 1 and "not permitted" in notes[0]["text"]


# --- a decoder's training ------------------------------------------------------------------------


@pytest.fixture
def problem_with_aux(observe, rotation, originals, digits):
    nets = {(0, 1): rotation(0), (3, 1): rotation(1)}
    reps = [net(part) for net, part in zip(nets.values(), originals.split(5), strict=True)]
    seen = observe(reps, nets, threat="strong")
    return replace(seen, aux=digits.images[10:].float() / 255, aux_labels=digits.labels[10:])


@pytest.mark.parametrize("capturer", ["tape", "refuses"])
def test_a_captured_training_ends_at_the_plain_one(problem_with_aux, monkeypatch, capturer):
    """Step size and pairs come from buffers that the replay reads."""
    attack = AmortisedDecoder(updates=10, width=4, views=1, stages=1, patience=99)
    plain, given, notes = attack(problem_with_aux), {"tape": Tape(), "refuses": Refuses()}, []
    monkeypatch.setattr(decoder, "capture_for", lambda device: given[capturer])
    context = Context(report=lambda event: event.name == "note" and notes.append(event.data))
    found = attack(problem_with_aux, context)
    assert torch.allclose(found.images, plain.images, atol=1e-3)
    assert not torch.allclose(found.images, found.prior, atol=0.1)
    if capturer == "tape":
        assert notes == [] and given["tape"].replays == 2 + 10 - 1
    else:
        assert len(notes) == 1 and "not permitted" in notes[0]["text"]


def test_a_sharp_training_is_not_captured(problem_with_aux, monkeypatch):
    tape = Tape()
    monkeypatch.setattr(decoder, "capture_for", lambda device: tape)
    AmortisedDecoder(updates=3, width=4, views=1, stages=1, loss="sharp")(problem_with_aux)
    assert tape.captures == 0


# --- gradient matching ---------------------------------------------------------------------------


def match_gradients(simulate=gradient, rows: int = 4, device: str = "cpu", **more) -> SearchResult:
    """Rows of two clients, two images each; a row turns NaN where it gets too bright."""
    draw = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.Sigmoid(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
        ).requires_grad_(False)
    uploads = [
        {name: torch.randn(p.shape, generator=draw) for name, p in net.named_parameters()}
        for _ in range(2)
    ]
    people = [Victim(k, 1, net, upload, False) for k, upload in enumerate(uploads)]
    match = UpdateMatch(
        [people[i * 2 // rows] for i in range(rows)],
        simulate,
        cosine,
        bn="eval",
        device=torch.device(device),
        dtype=torch.float64,
    )

    def fragile(images, labels):
        bright = (images > 0.9).flatten(1).sum(1) > 12
        return match(images, labels) + torch.where(bright, torch.nan, 0.0)

    start, spare = torch.rand(2, rows, 2, 1, 6, 6, generator=draw, dtype=torch.float64).to(device)
    labels = torch.eye(3, dtype=torch.float64, device=device)[:2].expand(rows, 2, 3)
    return signed_adam(fragile, start, spare, labels, steps=40, lr=0.1, tv=0.02, **more)


def assert_equal(one: SearchResult, other: SearchResult) -> None:
    for name, value in vars(one).items():
        torch.testing.assert_close(
            getattr(other, name), value, rtol=0, atol=0, equal_nan=True, msg=name
        )


@pytest.mark.parametrize("consensus", [0.0, 0.5])
@pytest.mark.parametrize(
    ("simulate", "rows"), [(gradient, 1), (gradient, 4), (LocalSteps(0.1, 2, 1), 4)]
)
def test_captured_matching_equals_plain_steps(simulate, rows, consensus):
    """Step size, restarts after NaN, the pull of restarts and the best iterate are in buffers."""
    how = {"consensus": consensus, "restarts": max(1, rows // 2)}
    tape, notes = Tape(), []
    plain = match_gradients(simulate, rows, **how)
    assert_equal(plain, match_gradients(simulate, rows, **how, capturer=tape, note=notes.append))
    assert notes == [] and tape.captures == 1
    assert tape.replays == 2 + 40 - 1  # two to check; the first step is a plain one
    assert int(plain.redrawn.sum()) > 0 and bool(plain.fit.isfinite().all())


@pytest.mark.parametrize(
    ("capturer", "why"), [(Refuses(), "not permitted"), (Frozen(), "other numbers")]
)
def test_matching_that_cannot_be_captured_runs_as_before(capturer, why):
    notes: list[str] = []
    assert_equal(match_gradients(), match_gradients(capturer=capturer, note=notes.append))
    assert len(notes) == 1 and why in notes[0]


def test_only_gpus_capture():
    assert capture_for(torch.device("cpu")) is None
    assert isinstance(capture_for(torch.device("cuda", 0)), CudaGraphCapture)


def test_a_device_has_one_stream_for_all_captures(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    side_stream.cache_clear()
    one, other = torch.device("cuda", 0), torch.device("cuda", 1)
    assert side_stream(one) is side_stream(one)
    assert side_stream(one) is not side_stream(other)
    side_stream.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_more_captures_take_no_more_memory():
    def product(one: Tensor, out: Tensor) -> None:
        torch.mm(one, one, out=out)

    capturer, taken = CudaGraphCapture(torch.device("cuda", 0)), []
    for _ in range(6):
        weight = torch.ones(256, 256, device="cuda")
        out = torch.empty_like(weight)
        replay = capturer.capture(partial(product, weight, out))
        replay()
        del replay
        taken.append(torch.cuda.memory_allocated())
    assert taken[-1] == taken[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_cuda_graph_equals_plain_steps(observe, rotation, originals, monkeypatch, precision):
    net, notes = rotation(), []
    problem = observe([net(originals)], {(0, 1): net})
    context = Context(
        device=torch.device("cuda", 0),
        report=lambda event: event.name == "note" and notes.append(event.data),
    )
    attack = DeepImagePrior(steps=4, channels=(4,), skip=2, depth=2, precision=precision)
    found = attack(problem, context)
    assert notes == []
    monkeypatch.setattr(inversion, "capture_for", lambda device: None)
    plain = attack(problem, context)
    assert torch.allclose(found.trace[:3], plain.trace[:3], rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_matches_gradients_as_plain_steps_do():
    notes: list[str] = []
    capturer = CudaGraphCapture(torch.device("cuda", 0))
    found = match_gradients(device="cuda", capturer=capturer, note=notes.append)
    assert notes == []
    plain = match_gradients(device="cuda")
    torch.testing.assert_close(found.trace[:3], plain.trace[:3], equal_nan=True)
