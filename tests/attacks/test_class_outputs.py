"""How mean outputs of classes are compared."""

import math

import pytest
import torch

from fedre_privacy.attacks.common.class_outputs import LEAST, ClassOutputs

SHARES = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.96, 0.04]])


def test_shares_are_compared_by_their_logarithms():
    how = ClassOutputs.of(SHARES[:1])
    assert how.shares and how.least == LEAST
    logits = torch.tensor([[2.0, 1.0, -40.0]])
    expected = logits.log_softmax(1).clamp(min=-30)
    torch.testing.assert_close(how.features(how.made(logits)), expected)


def test_zeros_count_as_half_the_least_share_and_noise_as_what_it_took():
    assert ClassOutputs.of(SHARES).least == pytest.approx(0.02)
    noisy = torch.tensor([[0.8, 0.3, -0.1], [0.1, 0.9, 0.01]])
    how = ClassOutputs.of(noisy)
    assert how.least == pytest.approx(0.1)
    assert float(how.features(noisy).min()) == pytest.approx(math.log(0.1))


def test_raw_outputs_stay_as_they_are():
    raw = 5 * torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    how = ClassOutputs.of(raw)
    assert not how.shares and how.features(how.made(raw)) is raw
