"""Weighted means of parameters."""

import pytest
import torch
from torch import nn

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.protocols.blocks.averaging import load_state, state_of, weighted_mean
from fedre_privacy.protocols.blocks.small_model import kl


def test_weights_are_shares():
    states = [{"a": torch.full((2, 2), v), "b": torch.tensor([v])} for v in (1.0, 2.0, 6.0)]
    mean = weighted_mean(states, torch.tensor([1, 1, 2]))
    torch.testing.assert_close(mean, {"a": torch.full((2, 2), 3.75), "b": torch.tensor([3.75])})
    assert mean["a"].dtype == torch.float32


def test_equal_states_stay():
    state = {"a": torch.randn(7, 3)}
    mean = weighted_mean([state] * 3, torch.tensor([3, 5, 11]))
    torch.testing.assert_close(mean, state, rtol=1e-7, atol=0)
    assert mean["a"].data_ptr() != state["a"].data_ptr()


def test_what_cannot_be_averaged():
    with pytest.raises(ValueError, match="at least one"):
        weighted_mean([], torch.ones(0))
    with pytest.raises(ValueError, match="same names"):
        weighted_mean([{"a": torch.ones(1)}, {"b": torch.ones(1)}], torch.ones(2))


def test_kl_has_its_direction_and_lets_no_gradient_into_the_teacher():
    student, teacher = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    p, q = teacher.softmax(1), student.softmax(1)
    value = kl(student, teacher)
    assert value.item() == pytest.approx((p * (p / q).log()).sum().item() / 4, rel=1e-4)
    value.backward()
    assert teacher.grad is None
    torch.testing.assert_close(student.grad, ((q - p) / 4).detach(), rtol=1e-3, atol=1e-6)
    kl(student, teacher, detach=False).backward()
    assert teacher.grad.abs().sum() > 0


def test_state_with_and_without_buffers():
    def net():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    one, other = net(), net()
    one(torch.randn(9, 3))
    assert set(state_of(one)) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    state = state_of(one, buffers=True)
    assert set(state) - set(state_of(one)) == {"1.running_mean", "1.running_var"}
    load_state(other, state)
    torch.testing.assert_close(state_of(other, buffers=True), state, rtol=0, atol=0)
    other[1].running_mean.zero_()
    load_state(other, state_of(one))  # buffers stay
    assert not other[1].running_mean.any() and one[1].running_mean.any()
    with pytest.raises(IncompatibleError, match="'2.weight'"):
        load_state(other, {**state, "2.weight": torch.ones(1)})
