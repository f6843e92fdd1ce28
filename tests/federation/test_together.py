"""Clients trained in one program end where clients trained one after another end."""

from dataclasses import replace

import pytest
import torch

from fedre_privacy.core.errors import DivergedError
from fedre_privacy.defenses.base import defenses
from fedre_privacy.federation import loop
from fedre_privacy.federation import stacked_clients as together
from fedre_privacy.federation.steps import client_step
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.state import Task

SIZES = (24, 20, 5, 17)
OPTIONS = {"sizes": SIZES, "epochs": 2, "dropout": 0.0, "lr": 0.1}
"""Of batches of 8: six, four, two (of 5, so alone in its size) and four in a round."""


@pytest.fixture
def groups(monkeypatch):
    """The numbers of samples of the clients of every program that ended well."""
    seen, real = [], together.fit_together

    def spy(models, samples, *rest, **options):
        means = real(models, samples, *rest, **options)
        seen.append([len(one) for one in samples])
        return means

    monkeypatch.setattr(together, "fit_together", spy)
    return seen


def _close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _rows_close(rows, others):
    for row, other in zip(rows, others, strict=True):
        assert row | {"loss": 0, "wall_s": 0} == other | {"loss": 0, "wall_s": 0}
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["fedre", "fedgh", "local"])
def test_the_result_is_that_of_one_after_another(federation, groups, name):
    alone, joint = (
        federation(protocols.get(name)(), together=choice, **OPTIONS)
        for choice in ("never", "always")
    )
    rows = alone.run()
    assert groups == []
    found = joint.run()
    assert groups == [[24, 20, 17]] * 2
    _close(joint.state(), alone.state())  # BatchNorm's running statistics too
    _rows_close(found, rows)
    for one, two in zip(joint.uploads(2), alone.uploads(2), strict=True):
        for artifact, other in zip(one.artifacts, two.artifacts, strict=True):
            _close(artifact.tensors(), other.tensors())
    for client in joint.clients:
        assert not client.model.training
        assert all(parameter.grad is None for parameter in client.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "models"), [("fedavg", "cnn4"), ("fedre", "cnn4"), ("fedavg", "resnet8")]
)
def test_so_it_is_for_images(world, groups, name, models):
    alone, joint = (
        world(name, models=models, train={"together": choice}) for choice in ("never", "always")
    )
    rows, found = alone.run(), joint.run()
    assert [len(group) for group in groups] == [3, 3]
    _close(joint.state(), alone.state())
    _rows_close(found, rows)


@pytest.mark.parametrize(
    "training",
    [{"sizes": (5, 24, 5, 8)}, {"join_ratio": 0.5, "rounds": 3}, {"reference_loader": True}],
    ids=["small clients", "half of the clients", "never shuffled"],
)
def test_it_follows_the_settings_of_training(federation, groups, training):
    alone, joint = (
        federation(protocols.get("fedgh")(), together=choice, **(OPTIONS | training))
        for choice in ("never", "always")
    )
    rows, found = alone.run(), joint.run()
    assert groups
    if "sizes" in training:
        assert groups == [[5, 5], [24, 8]] * 2
    _close(joint.state(), alone.state())
    _rows_close(found, rows)


def test_frozen_parameters_stay(federation, groups):
    results = []
    for choice in ("never", "always"):
        fed = federation(protocols.get("local")(), together=choice, **OPTIONS)
        for client in fed.clients:
            client.model.head.weight.requires_grad_(False)
        before = fed.state()
        fed.run()
        assert torch.equal(before["0/model/head.weight"], fed.state()["0/model/head.weight"])
        results.append(fed.state())
    assert groups
    _close(*results)


@pytest.mark.parametrize(("chosen", "at_once"), [([3, 0, 1, 2], 32), ([1, 3, 0], 2)])
def test_neither_the_order_of_clients_nor_their_number_at_once_matters(
    federation, groups, monkeypatch, chosen, at_once
):
    monkeypatch.setattr(together, "AT_ONCE", at_once)
    fed, alone = (
        federation(protocols.get("local")(), together=choice, **OPTIONS)
        for choice in ("always", "never")
    )
    assert fed.clients[0].model.training
    losses = together.train_together(fed.protocol, fed.clients, chosen, fed.setting, 1)
    assert not any(fed.clients[k].model.training for k in losses)
    assert len(losses) == (3 if at_once > 2 else 2) and 2 not in losses
    for k, loss in losses.items():
        _, expected = client_step(alone.protocol, alone.clients[k], (), Task(alone.setting, 1, k))
        assert loss == pytest.approx(expected, rel=1e-4)
        _close(fed.clients[k].model.state_dict(), alone.clients[k].model.state_dict())


def _same_result(federation, name, **options):
    """Run with the setting on and off; whether everything is bit-identical."""
    feds = [
        federation(protocols.get(name)(), together=choice, **(OPTIONS | options))
        for choice in ("never", "always")
    ]
    rows, found = ([r | {"wall_s": 0} for r in fed.run()] for fed in feds)
    one, two = (fed.state() for fed in feds)
    return rows == found and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", ["fedproto", "fpl"])
def test_a_protocol_with_a_loss_of_its_own_is_left_alone(federation, groups, name):
    assert _same_result(federation, name)
    assert groups == []


@pytest.mark.parametrize("name", ["fml", "fedsgd", "fedkd"])
def test_so_is_one_that_trains_in_its_own_way(world, groups, name):
    one, two = (
        world(name, train={"rounds": 1, "together": choice}) for choice in ("never", "always")
    )
    one.run(), two.run()
    assert groups == []
    state = two.state()
    assert all(torch.equal(value, state[key]) for key, value in one.state().items())


def test_a_defence_that_trains_is_left_alone(federation, groups):
    fed = federation(protocols.get("local")(), together="always", **OPTIONS)
    dp_sgd = defenses.get("dp-sgd")(noise=1.0, clip=1.0)
    assert together.can_stack_clients(fed.protocol, fed.setting, ())
    assert not together.can_stack_clients(fed.protocol, fed.setting, (dp_sgd,))


def test_a_model_that_draws_random_numbers_is_left_alone(federation, groups):
    assert _same_result(federation, "fedre", dropout=0.3)
    assert groups == []


def test_what_fails_at_the_end_has_changed_no_model(federation, monkeypatch):
    """A device reports late: the losses are the first thing read from it."""
    fed = federation(protocols.get("local")(), together="always", **OPTIONS)
    before = fed.state()

    def lost(tensor):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(torch.Tensor, "tolist", lost)
    assert together.train_together(fed.protocol, fed.clients, range(4), fed.setting, 1) == {}
    assert all(torch.equal(value, before[key]) for key, value in fed.state().items())


def test_clients_of_other_architectures_are_left_alone(federation, groups):
    fed = federation(protocols.get("local")(), together="always", **OPTIONS)
    for names, expected in (("abcd", []), ("abca", [0, 3])):
        setting = replace(fed.setting, architectures=tuple(names))
        losses = together.train_together(fed.protocol, fed.clients, range(4), setting, 1)
        assert list(losses) == expected


def test_when_memory_runs_out_nothing_has_changed(federation, monkeypatch):
    def full(*args, **options):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch, "_foreach_add_", full)
    fed = federation(protocols.get("local")(), together="always", **OPTIONS)
    before = fed.state()
    assert together.train_together(fed.protocol, fed.clients, range(4), fed.setting, 1) == {}
    assert all(torch.equal(before[key], value) for key, value in fed.state().items())


def test_by_default_it_is_for_a_gpu(federation):
    fed = federation(protocols.get("local")())
    assert fed.training.together == "auto"
    assert not together.can_stack_clients(fed.protocol, fed.setting, ())
    setting = replace(fed.setting, device=torch.device("cuda"))
    assert together.can_stack_clients(fed.protocol, setting, ())


def test_a_diverging_client_is_named(federation, groups):
    fed = federation(protocols.get("local")(), together="always", **(OPTIONS | {"lr": 1e30}))
    with pytest.raises(DivergedError) as stop:
        fed.run()
    assert groups and "the loss of client 0 in round 1 is nan" in str(stop.value)


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(federation, groups, monkeypatch):
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
    assert groups and all(torch.equal(one[key], two[key]) for key in one)
