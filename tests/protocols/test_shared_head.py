"""The head that the server trains: its loss, its storage, and what it needs of the clients."""

import copy
import dataclasses

import pytest
import torch

from fedre_privacy.core.artifacts import EntangledRep, HeadState
from fedre_privacy.core.types import Upload
from fedre_privacy.federation.steps import next_broadcast
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks import shared_head
from fedre_privacy.protocols.blocks.shared_head import HeadTraining
from fedre_privacy.protocols.blocks.state import Task

SHARING = ["fedre", "fedgh", "fedallrep"]


def _mixed_uploads(count):
    rng = torch.Generator().manual_seed(3)
    reps = torch.randn(count, 6, generator=rng)
    mixes = torch.rand(count, 4, generator=rng).softmax(1)
    pairs = zip(reps, mixes, strict=True)
    return [Upload(k, 1, (EntangledRep(rep, mix),)) for k, (rep, mix) in enumerate(pairs)]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_soft_loss_is_the_weighted_sum_of_hard_ones(federation, reduction):
    training = HeadTraining(reduction=reduction, batch_size=3, epochs=2, lr=0.5)
    fed = federation(protocols.get("fedre")(server=training))
    task, uploads = Task(fed.setting, round=1), _mixed_uploads(7)
    head = copy.deepcopy(fed.server.modules["head"])
    shared_head.aggregate(fed.protocol, fed.server, uploads, task)

    rng = task.rng("server")
    for _ in range(2):
        order = torch.randperm(7, generator=rng).tolist()
        for batch in (order[:3], order[3:6], order[6:]):
            loss = 0.0
            for i in batch:
                (pair,) = uploads[i].artifacts
                row = head(pair.rep)
                hard = [row.exp().sum().log() - row[c] for c in range(4)]
                loss = loss + sum(w * ce for w, ce in zip(pair.encoding, hard, strict=True))
            loss = loss / len(batch) if reduction == "mean" else loss
            gradients = torch.autograd.grad(loss, list(head.parameters()))
            for p, gradient in zip(head.parameters(), gradients, strict=True):
                p.data -= 0.5 * gradient
    torch.testing.assert_close(fed.server.modules["head"].state_dict(), head.state_dict())


def test_one_step_of_the_sum_is_batch_size_steps_of_the_mean(federation):
    moved = {}
    for reduction in ("sum", "mean"):
        fed = federation(protocols.get("fedre")(server=HeadTraining(reduction=reduction)))
        head = fed.server.modules["head"]
        before = head.weight.detach().clone()
        shared_head.aggregate(fed.protocol, fed.server, _mixed_uploads(5), Task(fed.setting, 1))
        moved[reduction] = head.weight.detach() - before
    torch.testing.assert_close(moved["sum"], 5 * moved["mean"], rtol=1e-3, atol=1e-6)


def test_the_mean_is_the_default_where_a_server_has_few_pairs():
    made = {name: protocols.get(name)().server.reduction for name in SHARING}
    assert made == {"fedre": "mean", "fedgh": "mean", "fedallrep": "sum"}


def test_ten_pairs_of_the_released_homogeneous_half_are_the_default_step(federation):
    """Its 0.001 on the sum is 0.01 on the mean; the heterogeneous half steps ten times as far."""
    heads = []
    for server in ({}, {"lr": 0.001, "reduction": "sum", "batch_size": 32}):
        fed = federation(protocols.get("fedre")(server=HeadTraining(**server)))
        shared_head.aggregate(fed.protocol, fed.server, _mixed_uploads(10), Task(fed.setting, 1))
        heads.append(fed.server.modules["head"].state_dict())
    torch.testing.assert_close(*heads, rtol=1e-5, atol=1e-7)


def _storages(modules):
    return {p.untyped_storage().data_ptr() for m in modules for p in m.parameters()}


@pytest.mark.parametrize("name", SHARING)
def test_the_servers_head_shares_storage_with_nobody(federation, name):
    fed = federation(protocols.get(name)(), join_ratio=0.7)
    for moment in ("before", "after"):
        owned = [_storages(fed.server.modules.values())]
        owned += [_storages([client.model]) for client in fed.clients]
        assert len(set().union(*owned)) == sum(map(len, owned)), moment
        if moment == "before":
            fed.run()


@pytest.mark.parametrize("name", SHARING)
def test_a_broadcast_is_a_copy_on_both_sides(federation, name):
    fed = federation(protocols.get(name)())
    message = next_broadcast(fed.protocol, fed.server).usual
    sent = {key: tensor.clone() for key, tensor in message[0].params.items()}
    client, other = fed.clients[:2]
    for receiver in (client, other):
        fed.protocol.receive(receiver, message, Task(fed.setting, 1, receiver.id))
    with torch.no_grad():
        client.model.head.weight.zero_()
        fed.server.modules["head"].bias.zero_()
    torch.testing.assert_close(dict(message[0].params), sent, rtol=0, atol=0)
    torch.testing.assert_close(other.model.head.weight.data, sent["weight"], rtol=0, atol=0)


def test_the_first_broadcast_is_not_any_clients_head(federation):
    fed = federation(protocols.get("fedre")())
    head = fed.server.modules["head"].weight
    assert not any(torch.equal(head, client.model.head.weight) for client in fed.clients)


@pytest.mark.parametrize("name", SHARING)
def test_unequal_lengths_are_refused_with_every_client_named(federation, name):
    fed = federation(protocols.get(name)())
    assert fed.protocol.check(fed.setting) == []
    uneven = dataclasses.replace(
        fed.setting, dims=(6, 512, 6), architectures=("tiny", "cnn4", "tiny")
    )
    (problem,) = fed.protocol.check(uneven)
    for part in (f"'{name}'", "client 0 (tiny): 6", "client 1 (cnn4): 512", "--set model.dim"):
        assert part in problem
    assert protocols.get("local")().check(uneven) == []


def test_clients_get_a_head_and_nothing_else(federation):
    fed = federation(protocols.get("fedgh")())
    client = fed.clients[0]
    extractor = copy.deepcopy(client.model.extractor.state_dict())
    ones = HeadState({"weight": torch.ones(4, 6), "bias": torch.ones(4)})
    fed.protocol.receive(client, (ones,), Task(fed.setting, 1, client.id))
    assert client.model.head.weight.eq(1).all() and client.model.head.bias.eq(1).all()
    torch.testing.assert_close(client.model.extractor.state_dict(), extractor, rtol=0, atol=0)
