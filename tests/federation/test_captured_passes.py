"""Passes by captured steps give what passes batch by batch give.

A tape stands in for CUDA graphs (tests/tape.py): it repeats the operations of one batch on the same
buffers and refuses to read values.
"""

import runpy
from pathlib import Path

import pytest
import torch

from fedre_privacy.defenses.base import defenses
from fedre_privacy.federation import captured_passes
from fedre_privacy.federation.captured_passes import CapturedPass, CapturedPasses
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks import local
from fedre_privacy.protocols.blocks.local import represent
from fedre_privacy.protocols.blocks.state import Samples

Tape = runpy.run_path(str(Path(__file__).parent.parent / "tape.py"))["Tape"]

OPTIONS = {"sizes": (24, 20, 5), "rounds": 4, "lr": 0.1}


class Tapes:
    """Keeps a tape for each capture."""

    def __init__(self):
        self.made = []

    def capture(self, step):
        self.made.append(Tape())
        return self.made[-1].capture(step)


@pytest.fixture
def tapes(monkeypatch):
    """Every federation with ``together=always`` passes by tapes, eight images at a time."""
    made = Tapes()
    monkeypatch.setattr(
        CapturedPasses,
        "_cuda",
        lambda self: made if self.setting.training.together == "always" else None,
    )
    for module in (local, captured_passes):
        monkeypatch.setattr(module, "EVAL_BATCH", 8)
    return made


def _both(build, protocol, **options):
    """Two federations of the same settings: passed batch by batch, and by captured steps."""
    return [
        build(protocol, **(OPTIONS | options | {"together": choice}))
        for choice in ("never", "always")
    ]


@pytest.mark.parametrize(("name", "passes"), [("fedre", 6), ("fd", 6), ("local", 3)])
def test_the_result_is_that_of_plain_passes(federation, tapes, name, passes):
    plain, captured = _both(federation, protocols.get(name)())
    rows, found = ([row | {"wall_s": 0} for row in fed.run()] for fed in (plain, captured))
    assert rows == found
    torch.testing.assert_close(captured.state(), plain.state(), rtol=1e-5, atol=1e-6)
    for one, two in zip(captured.uploads(4), plain.uploads(4), strict=True):
        for artifact, other in zip(one.artifacts, two.artifacts, strict=True):
            torch.testing.assert_close(artifact.tensors(), other.tensors(), rtol=1e-5, atol=1e-6)
    assert len(tapes.made) == passes  # each client's own test samples, and what it uploads


@pytest.mark.slow
@pytest.mark.parametrize("name", protocols.names())
def test_so_it_is_for_every_protocol_and_images(world, tapes, name):
    plain, captured = (
        world(name, train={"together": choice, "rounds": 4}) for choice in ("never", "always")
    )
    rows, found = plain.run(), captured.run()
    # the head of fedcgs is solved for, which makes rounding a thousand times larger
    far = {"rtol": 2e-3, "atol": 1e-4} if name == "fedcgs" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(captured.state(), plain.state(), **far)
    for row, other in zip(found, rows, strict=True):
        assert row | {"loss": 0, "wall_s": 0} == other | {"loss": 0, "wall_s": 0}
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
    assert tapes.made or type(plain.protocol).logits is not Protocol.logits


@pytest.mark.parametrize("count", [1, 8, 20])
def test_outputs_follow_the_model(federation, tapes, count):
    client = federation(protocols.get("local")()).clients[0]
    samples = Samples(client.train.pool, client.train.labels).take(torch.arange(count))
    extractor = client.model.extractor.eval()
    made = CapturedPass(extractor, samples)
    assert made.capture(Tape(), pytest.fail)
    for _ in range(2):
        assert torch.equal(made.run(), represent(extractor, samples))
        with torch.no_grad():
            for value in extractor.parameters():
                value.mul_(1.5)
    assert made.run().data_ptr() != made.outputs.data_ptr()


def test_a_pass_is_captured_anew_where_its_buffers_move(federation, tapes, monkeypatch):
    fed = federation(protocols.get("local")(), together="always", **OPTIONS)
    passes, client = CapturedPasses(fed.protocol, fed.setting), fed.clients[0]
    tests = [one.test for one in fed.clients]

    def counted():
        return passes.count_correct(fed.clients, [0], tests)

    assert [counted() for _ in range(captured_passes.CAPTURED_AT - 1)] == [{}, {}]
    before = counted()
    assert before[0].total == len(client.test) and len(tapes.made) == 1
    for times in range(2, captured_passes.CAPTURES + 2):
        head = client.model.head
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        found = counted()
        assert found == (before if times <= captured_passes.CAPTURES else {})
    assert len(tapes.made) == captured_passes.CAPTURES


class Draws(torch.nn.Module):
    """Noise in eval mode too."""

    def forward(self, x):
        return x.flatten(1) + torch.rand(1)


def test_random_numbers_are_drawn_as_before(federation, tapes):
    said, before = [], torch.get_rng_state()
    client = federation(protocols.get("local")()).clients[0]
    assert not CapturedPass(Draws(), client.train).capture(Tape(), said.append)
    assert said == ["it draws random numbers"]
    assert torch.equal(torch.get_rng_state(), before)


class ReadsValue(torch.nn.Module):
    """Looks at a value on the host."""

    def forward(self, x):
        return x if float(x.detach().sum()) < 1e9 else x / 2


def test_what_cannot_be_captured_is_passed_as_before(federation, tapes, caplog):
    caplog.set_level("INFO", logger="fedre_privacy")
    plain, captured = _both(federation, protocols.get("fedre")())
    for fed in (plain, captured):
        for client in fed.clients:
            client.model.extractor.append(ReadsValue())
    rows, found = ([row | {"wall_s": 0} for row in fed.run()] for fed in (plain, captured))
    assert rows == found
    assert all(torch.equal(v, plain.state()[k]) for k, v in captured.state().items())
    said = [one.message for one in caplog.records if "batch by batch" in one.message]
    assert len(said) == 1 and "not permitted when stream" in said[0]


class OwnPrediction(Protocol):
    """Predicts by more than the model."""

    name = "own-prediction"
    uploads = ()

    def logits(self, client, images):
        return client.model(images) + client.id


def test_other_predictions_defences_and_samples_are_left_alone(federation, tapes):
    own = federation(OwnPrediction(), together="always", **OPTIONS)
    own.run()
    noise = (defenses.get("gaussian")(clip=1.0, noise=1.0),)
    federation(protocols.get("local")(), together="always", **OPTIONS).run(defenses=noise)
    loader = federation(
        protocols.get("fedre")(), together="always", reference_loader=True, **OPTIONS
    )
    loader.run()
    assert len(tapes.made) == 3 + 1  # tests of all, and what the client under one batch uploads


def test_by_default_it_is_for_a_gpu(federation):
    fed = federation(protocols.get("local")())
    passes = CapturedPasses(fed.protocol, fed.setting)
    tests = [one.test for one in fed.clients]
    assert [passes.count_correct(fed.clients, [0, 1], tests) for _ in range(3)] == [{}] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("name", protocols.names())
def test_on_a_gpu_passes_are_captured(world, monkeypatch, name):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    ran, real = [], CapturedPass.run
    monkeypatch.setattr(CapturedPass, "run", lambda self: ran.append(self) or real(self))
    monkeypatch.setattr(captured_passes, "EVAL_BATCH", 8)
    options = {"rounds": 4, "device": "cuda"}
    plain, graphs = (
        world(name, train=options | {"together": choice}) for choice in ("never", "auto")
    )
    rows = plain.run()
    assert not ran
    found = graphs.run()
    assert bool(ran) or type(graphs.protocol).logits is not Protocol.logits
    states = [
        {key: value for key, value in fed.state().items() if "generator" not in key}
        for fed in (graphs, plain)
    ]
    torch.testing.assert_close(*states, rtol=2e-3, atol=2e-4)
    for row, other in zip(found, rows, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=2e-3)
