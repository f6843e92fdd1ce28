"""Accuracy is measured anew only where a prediction may have changed."""

import pytest
import torch

from fedre_privacy.federation import loop
from fedre_privacy.federation.accuracy import checksum
from fedre_privacy.protocols.base import protocols

OPTIONS = {"sizes": (12, 12, 12), "rounds": 2}


@pytest.fixture
def passes(monkeypatch):
    """The clients whose test samples were looked at, in order."""
    seen, real = [], loop.count

    def spy(protocol, client, setting, samples, defenses):
        seen.append(client.id)
        return real(protocol, client, setting, samples, defenses)

    monkeypatch.setattr(loop, "count", spy)
    return seen


@pytest.mark.parametrize(
    ("name", "expected"), [("local", 2), ("fd", 2), ("fpl", 2), ("fedgh", 4), ("fedproto", 4)]
)
def test_what_no_broadcast_changed_is_looked_at_once(federation, passes, name, expected):
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


def test_a_number_that_is_known_is_the_one_that_a_pass_gives(federation, monkeypatch):
    short, full = (federation(protocols.get("fd")(), **OPTIONS) for _ in "ab")
    found = [row | {"wall_s": 0} for row in short.run()]
    monkeypatch.setattr(
        loop.AccuracyCache,
        "clients_to_measure",
        lambda self, clients, device: [*range(len(clients))],
    )
    assert found == [row | {"wall_s": 0} for row in full.run()]


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
