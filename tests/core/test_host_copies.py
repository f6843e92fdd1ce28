"""Copies to the host are waited for once."""

import pytest
import torch

from fedre_privacy.core import host_copies as copies


class Queue:
    def __init__(self, device):
        self.device = device

    def synchronize(self):
        Queue.waits += 1


@pytest.fixture(autouse=True)
def _queued(monkeypatch):
    """Let the CPU stand for a device with a queue."""
    Queue.waits = 0
    monkeypatch.setitem(copies.STREAMS, "cpu", Queue)


VALUES = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.ones(())}


def refuse():
    raise ValueError("not so")


def test_copies_are_contiguous_and_their_own():
    found = copies.host_copies(VALUES)
    assert Queue.waits == 1
    for name, value in VALUES.items():
        assert torch.equal(found[name], value)
        assert found[name].is_contiguous() and found[name].data_ptr() != value.data_ptr()


def test_a_block_waits_once():
    with copies.one_wait():
        made = [copies.host_copies(VALUES) for _ in range(5)]
        assert not Queue.waits
    assert Queue.waits == 1
    assert all(torch.equal(one["a"], VALUES["a"]) for one in made)


def test_reading_what_has_to_hold_is_that_wait():
    with copies.one_wait():
        copies.host_copies(VALUES)
        copies.require(torch.tensor(True), refuse)
    assert not Queue.waits


def test_what_does_not_hold_is_told_at_once_or_at_the_end_of_a_block():
    with pytest.raises(ValueError, match="not so"):
        copies.require(torch.tensor(False), refuse)
    done = []
    with pytest.raises(ValueError, match="not so"), copies.one_wait():
        copies.require(torch.tensor(True), lambda: done.append("needless"))
        copies.require(torch.tensor(False), refuse)
        done.append("the rest of the block")
    assert done == ["the rest of the block"]


def test_an_error_in_a_block_is_the_one_that_is_seen():
    with pytest.raises(KeyError), copies.one_wait():
        copies.require(torch.tensor(False), refuse)
        raise KeyError
    copies.host_copies(VALUES)
    assert Queue.waits == 1
