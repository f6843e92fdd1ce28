"""Accuracy is measured anew only where a prediction may have changed."""

import pytest
import torch

from fedre_privacy.federation import accuracy, loop
from fedre_privacy.federation.accuracy import AccuracyCache, checksum, count
from fedre_privacy.protocols.base import protocols

OPTIONS = {"sizes": (12, 12, 12), "rounds": 2}


@pytest.fixture
def passes(monkeypatch):
    """The clients whose test samples were looked at, in order."""
    seen, real = [], loop.count

    def spy(protocol, client, setting, samples, defenses, **keep):
        seen.append(client.id)
        return real(protocol, client, setting, samples, defenses, **keep)

    monkeypatch.setattr(loop, "count", spy)
    return seen


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("local", 2),
        ("fd", 2),
        ("fpl", 2),
        ("fedgh", 2),
        ("fedre", 2),
        ("fedproto", 4),
    ],
)
def test_what_no_broadcast_changed_is_passed_once(federation, passes, name, expected):
    fed = federation(protocols.get(name)(), **OPTIONS)
    rows = fed.run()
    assert passes.count(0) == expected
    for row in rows:
        if name == "local":
            assert row["acc_post_local"] == row["acc_post_broadcast"]


def test_clients_that_took_no_part_are_not_looked_at_again(federation, passes):
    fed = federation(protocols.get("local")(), **(OPTIONS | {"join_ratio": 0.34, "rounds": 3}))
    fed.run()
    assert len(passes) == 3 + 2  # all of them once, then who trained


@pytest.mark.parametrize("name", ["fd", "fedgh", "fedre", "lg-fedavg"])
def test_a_number_that_is_known_is_the_one_that_a_pass_gives(federation, monkeypatch, passes, name):
    short, full = (federation(protocols.get(name)(), **OPTIONS, shared_every=1) for _ in "ab")
    for fed in (short, full):
        for client in fed.clients:
            client.shared = fed.clients[0].test
    found = [row | {"wall_s": 0} for row in short.run()]
    assert len(passes) == 2 * 2 * 3  # rounds, own and shared, clients
    monkeypatch.setattr(accuracy, "KEPT_BYTES", 0)
    monkeypatch.setattr(
        loop.AccuracyCache, "clients_to_measure", lambda self: [*range(len(self.clients))]
    )
    assert found == [row | {"wall_s": 0} for row in full.run()]
    assert len(passes) == 3 * 2 * 2 * 3


def test_another_head_is_applied_to_what_the_extractor_made(federation):
    fed = federation(protocols.get("local")(), **OPTIONS)
    tests = [client.test for client in fed.clients]
    cache = AccuracyCache(fed.protocol, fed.clients, tests, fed.setting.device)

    def counted(k, keep=False):
        return count(fed.protocol, fed.clients[k], fed.setting, tests[k], keep=keep)

    assert cache.clients_to_measure() == [0, 1, 2]
    assert cache.count_by_heads([0, 1, 2]) == {}
    cache.update({k: counted(k, keep=True) for k in range(3)})
    with torch.no_grad():
        fed.clients[0].model.head.bias[3] += 100
        for part in (fed.clients[1].model.head, fed.clients[1].model.extractor):
            next(part.parameters()).mul_(-2)
    assert cache.clients_to_measure() == [0, 1]
    found = cache.count_by_heads([0, 1])
    assert list(found) == [0]
    assert found[0].correct == counted(0).correct == int((tests[0].labels == 3).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_a_checksum_tells_tensors_apart(dtype):
    values = torch.rand(7, 3, generator=torch.Generator().manual_seed(0)) > 0.5
    tensor = values.to(dtype)
    other = tensor.clone()
    other[0, 0] = 1 - other[0, 0] if dtype != torch.bool else ~other[0, 0]
    assert checksum(tensor) == checksum(tensor.clone()) != checksum(other)
    moved = tensor.flatten().roll(1).view(7, 3)
    assert torch.equal(moved, tensor) or checksum(moved) != checksum(tensor)
    assert checksum(torch.zeros(0)) == (0, 0)
