"""Label rules are exact where theory says so."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.attacks.gradients.class_means import shares
from fedre_privacy.attacks.gradients.label_counts import (
    STRATEGIES,
    as_batch,
    counts,
    idlg,
    joint,
    round_shares,
    rowmin,
)


def head_gradient(reps, labels, weight, bias):
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(reps @ weight.T + bias, labels)
    return torch.autograd.grad(loss, [weight, bias])


@pytest.mark.parametrize("labels", [[3], [0, 0, 0], [1, 2, 3, 3, 9, 9, 9, 0], list(range(10)) * 2])
def test_counts_are_exact_for_a_zero_head(labels):
    reps = torch.rand(len(labels), 12)
    wanted = torch.tensor(labels)
    _, bias = head_gradient(reps, wanted, torch.zeros(10, 12), torch.zeros(10))
    found = counts(bias, len(labels))
    assert found.tolist() == torch.bincount(wanted, minlength=10).tolist()
    assert as_batch(found).tolist() == sorted(labels)


def test_counts_are_exact_for_any_head_when_its_outputs_are_known():
    torch.manual_seed(0)
    reps, labels = torch.rand(30, 12), torch.randint(10, (30,))
    weight, bias = torch.randn(10, 12), torch.randn(10)
    _, slope = head_gradient(reps, labels, weight, bias)
    outputs = torch.softmax(reps @ weight.T + bias, 1).mean(0)
    assert counts(slope, 30, outputs).tolist() == torch.bincount(labels, minlength=10).tolist()


@pytest.mark.parametrize("with_bias", [True, False])
def test_a_single_label_is_exact_for_any_head(with_bias):
    for seed in range(10):
        torch.manual_seed(seed)
        weight, bias = head_gradient(
            torch.rand(1, 12), torch.tensor([seed]), 3 * torch.randn(10, 12), torch.randn(10)
        )
        assert idlg(weight, bias if with_bias else None).argmax() == seed


def test_joint_beats_uniform_counts_on_a_skewed_head():
    right = {"joint": 0, "counts": 0}
    for seed in range(20):
        torch.manual_seed(seed)
        centres = torch.rand(10, 16)
        labels = torch.randint(10, (12,))
        reps = (centres[labels] + 0.05 * torch.randn(12, 16)).clamp(min=0)
        weight, bias = torch.randn(10, 16), 2 * torch.randn(10)
        slopes = head_gradient(reps, labels, weight, bias)
        wanted = torch.bincount(labels, minlength=10)
        for rule in right:
            found = STRATEGIES[rule](*slopes, 12, weight, bias)
            right[rule] += int(torch.minimum(found, wanted).sum())
    assert right["joint"] > right["counts"] + 10


def test_row_minima_find_distinct_labels():
    torch.manual_seed(1)
    labels = torch.tensor([2, 5, 7])
    weight, _ = head_gradient(torch.rand(3, 12), labels, torch.zeros(10, 12), torch.zeros(10))
    assert as_batch(rowmin(weight, 3)).tolist() == [2, 5, 7]
    assert rowmin(weight, 8).sum() == 8 and set(as_batch(rowmin(weight, 8)).tolist()) == {2, 5, 7}


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("rule", STRATEGIES)
def test_counts_always_sum_to_the_batch(rule, size):
    torch.manual_seed(2)
    noise = torch.randn(10, 12), torch.randn(10)
    for weight, bias in (noise, (noise[0] * torch.nan, noise[1] * torch.nan)):
        found = STRATEGIES[rule](weight, bias, size, torch.randn(10, 12), torch.zeros(10))
        assert int(found.sum()) == size and int(found.min()) >= 0 and found.dtype == torch.int64


def test_rounding_is_by_largest_remainder():
    assert round_shares(torch.tensor([1.4, 1.4, 0.2, 0.0]), 3).tolist() == [2, 1, 0, 0]
    assert round_shares(torch.tensor([-1.0, 2.0, 2.0]), 2).tolist() == [0, 1, 1]


def test_joint_of_one_gradient_without_negative_rows_falls_back_to_uniform():
    assert (
        int(joint(torch.zeros(4, 3), torch.zeros(4), 4, torch.rand(4, 3), torch.zeros(4)).sum())
        == 4
    )


def test_shares_follow_the_drift_of_a_head_in_training():
    torch.manual_seed(3)
    centres = torch.rand(10, 32) * (torch.rand(10, 32) < 0.5)
    labels = torch.tensor([0] * 20 + [1] * 12 + [2] * 8)
    reps = (centres[labels] + 0.1 * torch.randn(40, 32)).clamp(min=0)
    head = torch.nn.Linear(32, 10)
    start = [p.detach().clone() for p in head.parameters()]
    for _ in range(20):
        head.zero_grad()
        torch.nn.functional.cross_entropy(head(reps), labels).backward()
        with torch.no_grad():
            for parameter in head.parameters():
                parameter -= 0.1 * parameter.grad
    change = [p - q.detach() for p, q in zip(start, head.parameters(), strict=True)]
    found = shares(*change, *start, 0.1, 20, least=0.03)
    wanted = torch.bincount(labels, minlength=10) / 40
    assert torch.equal(found > 0, wanted > 0)
    assert float((found - wanted).abs().max()) < 0.1
    still = (0.1 - change[1] / 2).clamp(min=0)  # outputs as if they had stayed uniform
    assert not torch.equal(still > 0.03, wanted > 0)
