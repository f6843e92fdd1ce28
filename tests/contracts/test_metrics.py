"""What every metric promises; a new one is tested by being registered."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.core.config import build_plugin, plain_plugin
from fedre_privacy.core.errors import IncompatibleError, MissingExtraError, MissingInputError
from fedre_privacy.eval.metrics.base import Metric, metrics

SHAPE = (3, 32, 32)


@pytest.fixture(params=metrics.names())
def metric(request) -> Metric:
    made = metrics.get(request.param)()
    try:
        made.check(SHAPE)
    except (MissingExtraError, MissingInputError) as error:
        pytest.skip(str(error))
    return made


@pytest.fixture
def pictures() -> torch.Tensor:
    """Six smooth pictures in [0, 1]."""
    rng = torch.Generator().manual_seed(0)
    coarse = torch.rand(6, 3, 4, 4, generator=rng)
    return torch.nn.functional.interpolate(coarse, 32, mode="bilinear").clamp(0, 1)


def noisy(pictures: torch.Tensor, size: float) -> torch.Tensor:
    noise = torch.randn(pictures.shape, generator=torch.Generator().manual_seed(1))
    return (pictures + size * noise).clamp(0, 1)


def test_declarations(metric):
    assert metric.title and metric.definition(SHAPE) and metric.digits >= 0
    problems: list[str] = []
    assert build_plugin(metrics, plain_plugin(metric), at="metrics", problems=problems) == metric


def test_nearer_pictures_leak_more_in_the_declared_direction(metric, pictures):
    near, far = (metric(noisy(pictures, size), pictures) for size in (0.02, 0.4))
    assert near.shape == (6,) and near.dtype == torch.float64
    assert bool(((near > far) if metric.higher_leaks else (near < far)).all())


def test_a_pair_is_scored_whoever_stands_beside_it(metric, pictures):
    sent = noisy(pictures, 0.1)
    together = metric(sent, pictures)
    assert torch.allclose(metric(sent[2:3], pictures[2:3]), together[2:3], rtol=1e-5, atol=1e-7)
    assert torch.allclose(metric(sent.flip(0), pictures.flip(0)), together.flip(0), rtol=1e-5)


def test_what_diverged_has_no_score_and_other_scales_are_refused(metric, pictures):
    sent = noisy(pictures, 0.1)
    sent[1, 0, 0, 0] = torch.nan
    assert metric(sent, pictures).isnan().tolist() == [i == 1 for i in range(6)]
    with pytest.raises(IncompatibleError):
        metric(pictures * 255, pictures)
    with pytest.raises(IncompatibleError):
        metric(pictures, pictures[:3])
