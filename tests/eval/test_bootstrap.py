"""The cluster bootstrap against known spreads."""

import math

import pytest
import torch

from fedre_privacy.eval import bootstrap


def test_interval_covers_a_known_mean_at_about_its_level():
    covered = 0
    for trial in range(60):
        rng = torch.Generator().manual_seed(trial)
        effect = torch.randn(30, generator=rng).repeat_interleave(6)
        values = 1.0 + effect + torch.randn(180, generator=rng)
        clusters = torch.arange(30).repeat_interleave(6)
        means = bootstrap.cluster_means(
            values.double().unsqueeze(1), clusters, draws=400, seed=trial
        )
        low, high = bootstrap.interval(means)
        covered += bool(low < 1.0 < high)
    assert 50 <= covered <= 60


def test_clusters_widen_the_interval():
    rng = torch.Generator().manual_seed(0)
    clusters = torch.arange(20).repeat_interleave(25)
    values = (torch.randn(20, generator=rng)[clusters]).double().unsqueeze(1)
    spread = bootstrap.cluster_means(values, clusters).std().item()
    alone = bootstrap.cluster_means(values, torch.zeros(500, dtype=torch.int64)).std().item()
    expected = values[::25].std().item() / math.sqrt(20)
    assert spread == pytest.approx(expected, rel=0.12)
    assert spread > 3 * alone


def test_columns_are_paired_and_nan_cells_left_out():
    rng = torch.Generator().manual_seed(1)
    a = torch.randn(40, generator=rng).double()
    holes = a.clone()
    holes[::3] = float("nan")
    clusters = torch.tensor([0] * 5 + [1] * 20 + [2] * 15)
    means = bootstrap.cluster_means(torch.stack([a, a + 2, holes, torch.ones(40)], dim=1), clusters)
    assert torch.allclose(means[:, 1] - means[:, 0], torch.full((2000,), 2.0).double())
    assert means.isfinite().all() and not torch.allclose(means[:, 2], means[:, 0])
    assert torch.allclose(means[:, 3], torch.ones(2000).double())


def test_draws_do_not_depend_on_how_rows_are_ordered_or_blocked(monkeypatch):
    values, clusters = torch.rand(30, 2).double(), torch.arange(30) % 4
    once = bootstrap.cluster_means(values, clusters, seed=3)
    assert torch.equal(once, bootstrap.cluster_means(values, clusters, seed=3))
    assert not torch.equal(once, bootstrap.cluster_means(values, clusters, seed=4))
    assert once.shape == (2000, 2)
    monkeypatch.setattr(bootstrap, "_BLOCK", 400)
    assert bootstrap.cluster_means(values, clusters, seed=3).shape == (2000, 2)
