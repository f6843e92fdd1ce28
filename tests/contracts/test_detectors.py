"""What each detector sees."""

from __future__ import annotations

import math

import pytest
import torch

from fedre_privacy.active_server.detectors.base import detectors
from fedre_privacy.core.artifacts import HeadState, Prototypes
from fedre_privacy.testing.message_checks import ROWS, receipt

HEAD = (HeadState({"weight": ROWS, "bias": ROWS[:, 0].clone()}),)
MEANS = (Prototypes(ROWS.abs(), torch.arange(4)),)


def score(name, message=HEAD, earlier=(), **changes):
    return detectors.get(name)().score(receipt(message, tuple(earlier), **changes))


@pytest.mark.parametrize("name", sorted(set(detectors.names()) - {"often-chosen"}))
def test_of_no_message_nothing_is_said(name):
    assert math.isnan(score(name, ()))


def scaled(factor):
    return (HeadState({name: factor * value for name, value in HEAD[0].params.items()}),)


def test_each_sees_what_it_is_for():
    flat = (HeadState({"weight": ROWS[:1].expand(4, 6).clone(), "bias": torch.ones(4)}),)
    assert score("centred-norm", HEAD) < -0.5 < score("centred-norm", flat) < 1e-6
    assert score("row-similarity", flat) == pytest.approx(1) and score("row-similarity") == 0
    for name in ("norm", "head-change"):
        assert score(name, scaled(10), [HEAD]) > 2 > 1e-6 > abs(score(name, HEAD, [HEAD]))
    assert score("receipt-loss", HEAD, [HEAD] * 4, losses=(1.0, 1.1, 0.9, 1.0, 3.0)) > 10
    even, one = torch.ones(4), torch.tensor([0.0, 8.0, 0.0, 1.0])
    assert score("d-snr", gradients=lambda: {"a": even, "b": 2 * even}) == pytest.approx(1 / 3)
    assert score("d-snr", gradients=lambda: {"a": even, "b": one}) == pytest.approx(8)
    assert score("d-snr", gradients=lambda: {"a": one * torch.tensor([0, 1, 0, 0])}) == 1e6
    for nothing in ({}, {"a": torch.zeros(4)}, {"a": torch.ones(1)}):
        assert math.isnan(score("d-snr", gradients=lambda found=nothing: found))
    assert math.isnan(score("norm", (MEANS[0].take(torch.zeros(0).long()),), [MEANS]))
    often, rarely = score("often-chosen", HEAD, [HEAD] * 9), score("often-chosen", round=10)
    assert often == pytest.approx(10 * math.log10(2)) and often > 3 > rarely >= 0
