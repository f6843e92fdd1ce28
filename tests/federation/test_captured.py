"""Clients trained by captured steps end where clients trained step by step end.

A tape stands in for CUDA graphs (tests/tape.py): it repeats the operations of one step on the same
buffers and refuses to read values.
"""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedre_privacy.core.errors import DivergedError
from fedre_privacy.defenses.base import defenses
from fedre_privacy.federation import captured_steps, loop
from fedre_privacy.federation.captured_steps import CapturedTraining, signature_of
from fedre_privacy.federation.steps import client_step
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks.state import Task

Tape = runpy.run_path(str(Path(__file__).parent.parent / "tape.py"))["Tape"]

SIZES = (24, 20, 5, 17)
OPTIONS = {"sizes": SIZES, "epochs": 2, "dropout": 0.0, "lr": 0.1}
"""Of batches of 8: six, four, two (of 5) and four in a round."""


class Tapes:
    """A tape for each client."""

    def __init__(self):
        self.by_client = {}

    def __call__(self, client):
        return self.by_client.setdefault(client, Tape())

    @property
    def captures(self):
        return {k: tape.captures for k, tape in sorted(self.by_client.items())}


@pytest.fixture
def tapes(monkeypatch):
    """Every federation with ``together=always`` is captured by tapes."""
    made = Tapes()
    monkeypatch.setattr(
        CapturedTraining,
        "_cuda",
        lambda self: made if self.setting.training.together == "always" else None,
    )
    return made


def _close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _rows_close(rows, others):
    for row, other in zip(rows, others, strict=True):
        assert row | {"loss": 0, "wall_s": 0} == other | {"loss": 0, "wall_s": 0}
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)


def _both(build, *args, **options):
    """Two federations of the same settings: trained step by step, and captured."""
    return [build(*args, **(options | {"together": choice})) for choice in ("never", "always")]


@pytest.mark.parametrize("name", ["fedre", "fedgh", "local", "fedproto"])
def test_the_result_is_that_of_plain_steps(federation, tapes, name):
    plain, captured = _both(federation, protocols.get(name)(), **OPTIONS)
    rows, found = plain.run(), captured.run()
    assert set(tapes.captures) == {0, 1, 2, 3}
    _close(captured.state(), plain.state())  # BatchNorm's running statistics too
    _rows_close(found, rows)
    for one, two in zip(captured.uploads(2), plain.uploads(2), strict=True):
        for artifact, other in zip(one.artifacts, two.artifacts, strict=True):
            _close(artifact.tensors(), other.tensors())
    for client in captured.clients:
        assert not client.model.training
        assert all(parameter.grad is None for parameter in client.model.parameters())


def test_a_step_is_captured_once_in_a_run(federation, tapes):
    federation(protocols.get("fedre")(), together="always", **(OPTIONS | {"rounds": 4})).run()
    assert tapes.captures == {0: 1, 1: 1, 2: 1, 3: 1}
    steps = {k: tape.replays for k, tape in tapes.by_client.items()}
    checks = 2  # replays that are compared with plain steps
    assert steps == {0: 24 + checks, 1: 16 + checks, 2: 8 + checks, 3: 16 + checks}


@pytest.mark.parametrize(
    "training",
    [
        {"momentum": 0.9, "weight_decay": 0.01},
        {"lr_decay": 0.5, "rounds": 3},
        {"sizes": (5, 24, 5, 8)},
        {"join_ratio": 0.5, "rounds": 3},
        {"reference_loader": True},
        {"statistics": "recomputed"},
    ],
    ids=lambda training: "-".join(training),
)
def test_it_follows_the_settings_of_training(federation, tapes, training):
    plain, captured = _both(federation, protocols.get("fedgh")(), **(OPTIONS | training))
    rows, found = plain.run(), captured.run()
    assert tapes.captures
    _close(captured.state(), plain.state())
    _rows_close(found, rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", protocols.names())
def test_so_it_is_for_every_protocol_and_images(world, tapes, name):
    plain, captured = (
        world(name, train={"together": choice, "rounds": 3}) for choice in ("never", "always")
    )
    rows, found = plain.run(), captured.run()
    states = [
        # Adam moves a bias before BatchNorm, whose gradient is rounding, by whole steps
        {key: value for key, value in fed.state().items() if "generator" not in key}
        for fed in (captured, plain)
    ]
    _close(*states)
    _rows_close(found, rows)
    trained = [one for one in captured.clients if captured.protocol.modules(one)]
    for client in trained:
        assert tapes.by_client[client.id].replays > 4, "checks alone are no training"


ONE_ROUND = {"rounds": 1, "augment": "crop-flip"}
"""Rounding grows in deep models with BatchNorm on few images."""


@pytest.mark.slow
@pytest.mark.parametrize("models", ["resnet8", "mobilenet-v2"])
def test_so_it_is_for_deep_models_and_changed_images(world, tapes, models):
    plain, captured = (
        world("fedre", models=models, train=ONE_ROUND | {"together": choice})
        for choice in ("never", "always")
    )
    rows, found = plain.run(), captured.run()
    assert tapes.captures
    _close(captured.state(), plain.state())
    _rows_close(found, rows)


def test_frozen_parameters_stay(federation, tapes):
    results = []
    for fed in _both(federation, protocols.get("local")(), **OPTIONS):
        for client in fed.clients:
            client.model.head.weight.requires_grad_(False)
        before = fed.state()
        fed.run()
        assert torch.equal(before["0/model/head.weight"], fed.state()["0/model/head.weight"])
        results.append(fed.state())
    assert tapes.captures
    _close(*results)


def test_the_order_of_clients_does_not_matter(federation, tapes):
    plain, captured = _both(federation, protocols.get("local")(), **OPTIONS)
    training = CapturedTraining(captured.protocol, captured.setting)
    losses = training.train(captured.clients, [3, 0, 2], 1)
    assert list(losses) == [3, 0, 2]
    for k, loss in losses.items():
        _, expected = client_step(plain.protocol, plain.clients[k], (), Task(plain.setting, 1, k))
        assert loss == pytest.approx(expected, rel=1e-4)
        _close(captured.clients[k].model.state_dict(), plain.clients[k].model.state_dict())


class ReadsMessage(Protocol):
    """A loss that depends on the message of the round."""

    name = "reads-message"
    uploads = ()

    def loss(self, client, images, labels, message):
        weight = len(message) + 1
        return weight * torch.nn.functional.cross_entropy(client.model(images), labels)


class ReadsValue(Protocol):
    """A loss that reads a value on the host."""

    name = "reads-value"
    uploads = ()

    def loss(self, client, images, labels, message):
        loss = torch.nn.functional.cross_entropy(client.model(images), labels)
        return loss if float(loss) < 100 else loss / 2


@pytest.mark.parametrize(
    ("protocol", "why"),
    [(ReadsMessage(), "reads the message"), (ReadsValue(), "not permitted when stream")],
    ids=["message", "value"],
)
def test_a_loss_that_cannot_be_captured_is_trained_as_before(
    federation, tapes, caplog, protocol, why
):
    caplog.set_level("INFO", logger="fedre_privacy")
    plain, captured = _both(federation, protocol, **OPTIONS)
    rows, found = ([r | {"wall_s": 0} for r in fed.run()] for fed in (plain, captured))
    assert rows == found
    one, two = plain.state(), captured.state()
    assert all(torch.equal(one[key], two[key]) for key in one)
    said = [record.message for record in caplog.records if "step by step" in record.message]
    assert len(said) == 1 and why in said[0]


def test_a_defence_that_trains_is_left_alone(federation, tapes):
    fed = federation(protocols.get("local")(), together="always", **OPTIONS)
    dp_sgd = defenses.get("dp-sgd")(noise=1.0, clip=1.0)
    training = CapturedTraining(fed.protocol, fed.setting, (dp_sgd,))
    assert training.train(fed.clients, range(4), 1) == {}
    assert tapes.captures == {}


def test_a_client_whose_buffers_move_is_captured_anew_where_it_pays(federation, tapes, monkeypatch):
    fed = federation(protocols.get("local")(), together="always", **OPTIONS)
    training = CapturedTraining(fed.protocol, fed.setting)
    assert set(training.train(fed.clients, [0], 1)) == {0}
    before = signature_of(fed.clients[0])
    head = fed.clients[0].model.head
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    assert signature_of(fed.clients[0]) != before
    monkeypatch.setattr(captured_steps, "CAPTURES", 1)
    assert training.train(fed.clients, [0], 2) == {}
    monkeypatch.setattr(captured_steps, "WORTH", 1)
    assert set(training.train(fed.clients, [0], 3)) == {0}
    assert tapes.captures == {0: 2}


def test_by_default_it_is_for_a_gpu(federation):
    fed = federation(protocols.get("local")())
    assert fed.training.together == "auto"
    assert CapturedTraining(fed.protocol, fed.setting).train(fed.clients, range(4), 1) == {}
    setting = replace(fed.setting, device=torch.device("cuda"))
    assert CapturedTraining(fed.protocol, setting)._captures is not None


def test_always_says_where_it_cannot_be(federation, caplog):
    federation(protocols.get("local")(), together="always", **OPTIONS).run()
    said = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1 and "train.together=always" in said[0].message


def test_a_diverging_client_is_named(federation, tapes):
    fed = federation(protocols.get("local")(), together="always", **(OPTIONS | {"lr": 1e30}))
    with pytest.raises(DivergedError) as stop:
        fed.run()
    assert tapes.captures and "the loss of client 0 in round 1 is nan" in str(stop.value)


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(federation, tapes, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)

    def stop(event):
        if event.data["round"] == 1:
            raise KeyboardInterrupt

    whole, stopped = (
        federation(protocols.get("fedre")(), together="always", **OPTIONS) for _ in "ab"
    )
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        stopped.run(report=stop)
    resumed = federation(
        protocols.get("fedre")(), together="always", folder=stopped.folder, **OPTIONS
    )
    resumed.run(resume=True)
    one, two = whole.state(), resumed.state()
    assert tapes.captures and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_precision_is_a_setting(federation, tapes, precision):
    plain, captured = _both(
        federation, protocols.get("fedgh")(), **(OPTIONS | {"precision": precision})
    )
    full = federation(protocols.get("fedgh")(), **OPTIONS)
    for fed in (plain, captured, full):
        fed.run()
    torch.testing.assert_close(captured.state(), plain.state(), rtol=2e-2, atol=2e-2)
    same = all(torch.equal(v, full.state()[k]) for k, v in plain.state().items())
    assert same == (precision == "tf32")  # a CPU computes float32 products in full


@pytest.fixture
def on_gpu(world, monkeypatch):
    """Make a federation on a GPU; and the clients that were captured in each of its rounds."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    captured, real = [], CapturedTraining.train

    def spy(self, *given):
        captured.append(sorted(found := real(self, *given)))
        return found

    monkeypatch.setattr(CapturedTraining, "train", spy)

    def build(name, choice, models="cnn4", **train):
        return world(name, models=models, train={"together": choice, "device": "cuda", **train})

    return build, captured


@pytest.mark.gpu
@pytest.mark.parametrize("name", protocols.names())
def test_on_a_gpu_every_protocol_is_captured(on_gpu, name):
    build, captured = on_gpu
    plain, graphs = build(name, "never"), build(name, "auto")
    rows = plain.run()
    captured.clear()
    found = graphs.run()
    trains = bool(graphs.protocol.modules(graphs.clients[0]))
    assert captured == [[0, 1, 2] if trains else []] * 2
    states = [
        {key: value for key, value in fed.state().items() if "generator" not in key}
        for fed in (graphs, plain)
    ]
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-4)
    for row, other in zip(found, rows, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "training",
    [{"momentum": 0.9, "weight_decay": 0.01}, {"augment": "crop-flip-erase"}, {"lr_decay": 0.5}],
    ids=lambda training: "-".join(training),
)
def test_on_a_gpu_it_follows_the_settings(on_gpu, training):
    build, captured = on_gpu
    plain, graphs = (build("fedre", choice, **training) for choice in ("never", "auto"))
    plain.run()
    captured.clear()
    graphs.run()
    assert captured == [[0, 1, 2]] * 2
    torch.testing.assert_close(graphs.state(), plain.state(), rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_on_a_gpu_dropout_draws_what_plain_steps_draw(on_gpu):
    build, captured = on_gpu
    feds = [build("local", choice, rounds=1) for choice in ("never", "auto")]
    for fed in feds:
        for client in fed.clients:
            client.model.extractor.append(torch.nn.Dropout(0.5))
        captured.clear()
        fed.run()
    assert captured == [[0, 1, 2]]
    torch.testing.assert_close(feds[1].state(), feds[0].state(), rtol=1e-3, atol=1e-4)
