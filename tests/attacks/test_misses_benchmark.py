"""The benchmark of misses keeps tuning and report apart and combines answers as it says."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import Reconstruction


@pytest.fixture(scope="module")
def misses(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        yield importlib.import_module("misses")
    finally:
        sys.path.remove(str(repo / "benchmarks"))
        sys.modules.pop("misses", None)


def answers(*fit: float) -> Reconstruction:
    images = torch.rand(len(fit), 3, 4, 4)
    none = torch.zeros(len(fit))
    return Reconstruction(
        images, images, torch.tensor(fit), none[None], torch.zeros(1), "", none.bool()
    )


def test_an_image_is_for_tuning_or_for_the_report(misses):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (120, 3, 4, 4), generator=rng) / 255
    tuning, report = (misses.in_half(images, half) for half in ("tuning", "report"))
    assert torch.equal(tuning, ~report)
    assert 30 < int(tuning.sum()) < 90
    changed = images.clone()
    changed[:, 0, 0, 0] += torch.where(changed[:, 0, 0, 0] < 1, 1, -1) / 255
    assert torch.equal(misses.in_half(changed, "tuning"), report)


@pytest.mark.parametrize(("seed", "half"), [(0, "report"), (1, "tuning"), (7, "tuning")])
def test_runs_of_one_half_are_refused_for_the_other(misses, seed, half):
    train = SimpleNamespace(train=SimpleNamespace(seed=seed))
    with pytest.raises(ConfigError, match=f"trained with seed {seed}"):
        misses.case_of(SimpleNamespace(settings=train, name="run"), 8, half, 8)


def test_answers_are_combined_as_stated(misses):
    one, other = answers(0.1, 0.4, 0.2, 0.3), answers(0.2, 0.3, 0.1, 0.4)
    made = misses.combined(one, other)
    mean = (one.images + other.images) / 2
    assert list(made) == list(misses.ANSWERS) == list(misses.COST)
    assert torch.equal(made["first start"], one.images)
    assert torch.equal(made["mean of both"], mean)
    for row, source in enumerate((one, other, other, one)):
        assert torch.equal(made["better match"][row], source.images[row])
    for row, source in enumerate((one.images, mean, one.images, one.images)):
        assert torch.equal(made["mean if in doubt"][row], source[row])


def test_a_search_that_diverged_is_in_doubt(misses):
    assert misses.doubtful(torch.tensor([0.1, float("nan"), 0.3, 0.2])).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(0, 10, 0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1)]
)
def test_the_interval_of_a_share(misses, hits, n, low, high):
    assert misses.wilson(hits, n) == pytest.approx((low, high), abs=2e-4)


def test_differences_are_paired(misses):
    before = pd.DataFrame(
        {"psnr": [11.0, 15.0], "ssim": [0.1, 0.5], "hit1": [0.0, 1.0]}
        | {"run": ["a", "a"], "client": [0, 1]}
    )
    after = before.assign(psnr=before["psnr"] + 2, ssim=before["ssim"] - 0.25)
    told = misses.paired(before, after)
    assert "psnr +2.000 [+2.000, +2.000], ssim -0.250 [-0.250, -0.250]" in told
    assert "misses -0.500 [" in told
