"""Limits from Fisher information: formulas, and answers that reach them and do not beat them."""

from __future__ import annotations

import math

import pytest
import torch

from fedre_privacy.experiments.fisher_bounds import information, unbiased_error

PIXELS, SENT = 64, 16


@pytest.fixture(scope="module")
def encoder():
    """16 random outputs of 64 pixels."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SENT, PIXELS, generator=generator, dtype=torch.float64) / math.sqrt(PIXELS)


def test_the_estimated_trace_is_the_trace(encoder):
    images = torch.rand(200, PIXELS, dtype=torch.float64)
    found = information(lambda x: x @ encoder.T, images, 0.5, probes=64)
    true = float(encoder.square().sum()) / 0.25
    assert found.shape == (200,)
    assert found.mean().item() == pytest.approx(true, rel=0.02)
    assert ((found / true - 1).abs() < 0.5).all()


def test_least_squares_is_unbiased_and_does_not_beat_its_limit(encoder):
    """An encoder with as many outputs as pixels, of any condition."""
    generator = torch.Generator().manual_seed(2)
    square = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    image = torch.rand(8, generator=generator, dtype=torch.float64)
    noise = torch.randn(20_000, 8, generator=generator, dtype=torch.float64) * 0.1
    answers = torch.linalg.solve(square, (image @ square.T + noise).T).T
    assert (answers.mean(0) - image).abs().max() < 0.05
    error = (answers - image).square().mean().item()
    traces = information(lambda x: x @ square.T, image[None], 0.1, probes=4000)
    assert unbiased_error(traces, 8).item() <= error
    orthogonal = torch.linalg.qr(square).Q
    answers = (image @ orthogonal.T + noise) @ orthogonal
    traces = information(lambda x: x @ orthogonal.T, image[None], 0.1, probes=4000)
    assert (answers - image).square().mean().item() == pytest.approx(
        unbiased_error(traces, 8).item(), rel=0.05
    )


def test_without_noise_there_is_no_limit(encoder):
    with pytest.raises(ValueError, match="needs noise"):
        information(lambda x: x, torch.rand(1, 4), 0.0)


def test_an_encoder_that_says_nothing_leaves_no_unbiased_attack():
    assert unbiased_error(torch.zeros(2), 4).isinf().all()
