"""Same seed, same bytes, whatever the order of the clients."""

import pytest
import torch
from torch import nn

from fedre_privacy.federation.steps import client_step, next_broadcast
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks.state import Task

NAMES = ["fedre", "fedgh", "fedallrep", "local"]


def _bytes(folder):
    return {path.name: path.read_bytes() for path in (folder / "uploads").iterdir()}


def _same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bytes(federation, name):
    one, two = (federation(protocols.get(name)(), rounds=3, join_ratio=0.67) for _ in "ab")
    rows = one.run()
    torch.manual_seed(99)  # the global generator is nobody's source
    torch.rand(5)
    again = two.run()
    assert _bytes(one.folder) == _bytes(two.folder)
    assert _same(one.state(), two.state())
    for a, b in zip(rows, again, strict=True):
        assert {**a, "wall_s": 0} == {**b, "wall_s": 0}


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_other_bytes(federation, name):
    one, two = (federation(protocols.get(name)(), seed=seed) for seed in (0, 1))
    one.run(), two.run()
    assert not _same(one.state(), two.state())
    if name != "local":
        assert _bytes(one.folder)["r0001.safetensors"] != _bytes(two.folder)["r0001.safetensors"]


def test_training_leaves_the_global_generator_alone(federation):
    fed = federation(protocols.get("fedre")())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fed.run()
    assert torch.equal(torch.rand(3), expected)


class Draws(Protocol):
    """Notes what the global generator gives during local training."""

    def loss(self, client, images, labels, message):
        client.memory["notes"].values.append(torch.rand(()).item())
        return super().loss(client, images, labels, message)

    def start_client(self, client, setting):
        client.memory["notes"] = nn.Module()
        client.memory["notes"].values = []


def test_dropout_draws_of_its_own_for_every_client_and_round(federation):
    fed = federation(Draws(), rounds=3, batch_size=64)
    fed.run()
    drawn = [value for client in fed.clients for value in client.memory["notes"].values]
    assert len(drawn) == len(set(drawn)) == 9


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_clients_does_not_matter(federation, name):
    sent, states = [], []
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        fed = federation(protocols.get(name)())
        message = next_broadcast(fed.protocol, fed.server).usual
        uploads = {}
        for k in order:
            if message:
                fed.protocol.receive(fed.clients[k], message, Task(fed.setting, 1, k))
            task = Task(fed.setting, round=1, client=k)
            emissions, loss = client_step(fed.protocol, fed.clients[k], message, task)
            uploads[f"{k}/loss"] = torch.tensor(loss)
            for number, emission in enumerate(emissions):
                for key, tensor in emission.artifact.tensors().items():
                    uploads[f"{k}/{number}/{key}"] = tensor
        sent.append(uploads)
        states.append(fed.state())
    for uploads, state in zip(sent[1:], states[1:], strict=True):
        assert _same(sent[0], uploads)
        assert _same(states[0], state)


@pytest.mark.parametrize("name", ["fedre", "fedgh", "fedallrep"])
def test_an_upload_is_a_copy(federation, name):
    fed = federation(protocols.get(name)())
    fed.protocol.receive(
        fed.clients[0], next_broadcast(fed.protocol, fed.server).usual, Task(fed.setting, 1, 0)
    )
    (emission,), _ = client_step(fed.protocol, fed.clients[0], (), Task(fed.setting, 1, 0))
    before = {key: t.clone() for key, t in emission.artifact.tensors().items()}
    with torch.no_grad():
        for value in (*fed.clients[0].model.parameters(), fed.clients[0].train.labels):
            value.zero_()
    assert _same(before, emission.artifact.tensors())
    assert not any(t.requires_grad for t in emission.artifact.tensors().values())
