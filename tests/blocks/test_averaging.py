"""Weighted means of parameters."""

import pytest
import torch

from fedre_privacy.blocks.averaging import weighted_mean
from fedre_privacy.blocks.mutual import kl


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
