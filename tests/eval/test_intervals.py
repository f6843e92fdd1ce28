"""Intervals of means over few clients hold their level; shares without variation prove little."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedre_privacy.eval.intervals import (
    bootstrap_estimate,
    cluster_means,
    ends,
    shares,
    weighted_estimates,
)

SIZES = {
    "even": {2: (6, 6), 3: (6, 6, 6), 5: (6,) * 5, 10: (6,) * 10},
    "uneven": {
        2: (2, 10), 3: (2, 5, 12), 5: (1, 2, 4, 8, 16), 10: (1, 1, 2, 2, 3, 4, 5, 8, 12, 16),
    },
    "one has most": {2: (40, 2), 3: (40, 2, 2), 5: (40,) + (2,) * 4, 10: (40,) + (2,) * 9},
}  # fmt: skip
"""Targets of each client, by number of clients."""


def worlds(sizes: tuple[int, ...], tails: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Targets whose mean is 0: differences between clients are as large as those within."""
    rng = np.random.default_rng(seed)
    clients = np.repeat(np.arange(len(sizes)), sizes)
    shape = (len(sizes), count)
    effects = rng.standard_normal(shape) if tails == "normal" else rng.standard_t(3, shape)
    values = effects[clients] + rng.standard_normal((len(clients), count))
    return torch.from_numpy(values), torch.from_numpy(clients)


@pytest.mark.parametrize("tails", ["normal", "heavy"])
@pytest.mark.parametrize("sizes", list(SIZES))
@pytest.mark.parametrize("clients", [2, 3, 5, 10])
def test_few_clients_do_not_find_what_is_not_there(clients, sizes, tails):
    """The percentile bootstrap finds it in 24, 10 and 5 % of cases with 2, 3 and 5 clients."""
    values, owner = worlds(SIZES[sizes][clients], tails, 8000, seed=clients)
    estimate = cluster_means(values, owner)
    low, high = estimate.interval()
    assert float((low > 0).double().mean()) <= 0.03
    assert float((high < 0).double().mean()) <= 0.03
    assert float((estimate.p_above() < 0.025).double().mean()) <= 0.03
    if sizes == "even" and tails == "normal":  # nor is the interval wider than need be
        assert float((low > 0).double().mean()) >= 0.02


def test_a_real_effect_is_found_with_ten_clients():
    values, owner = worlds((2, 2, 2, 2, 2, 2, 3, 3, 3, 3), "normal", 2000, seed=0)
    low, _ = cluster_means(values + 1.5, owner).interval()
    assert float((low > 0).double().mean()) > 0.9


def test_clients_of_equal_size_are_a_t_test_on_their_means():
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(6, 4, generator=rng, dtype=torch.float64)
    estimate = cluster_means(values.flatten()[:, None], torch.arange(6).repeat_interleave(4))
    test = stats.ttest_1samp(values.mean(1).numpy(), 0.3, alternative="greater")
    assert float(estimate.p_above(0.3)) == pytest.approx(test.pvalue)
    assert float(estimate.freedom) == pytest.approx(5)
    both = stats.ttest_1samp(values.mean(1).numpy(), 0.0).confidence_interval(0.95)
    assert ends(estimate) == pytest.approx([both.low, both.high])


def test_uneven_clients_agree_with_the_matrices_of_the_paper():
    """CR2 and its degrees of freedom written out: V = y' M' A M y with M = I - 1 w'."""
    w = torch.tensor([1.0, 2.0, 5.0, 12.0], dtype=torch.float64)
    y = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)
    found = weighted_estimates(y[:, None], w[:, None])
    w = w / w.sum()
    left = torch.eye(4, dtype=torch.float64) - torch.outer(torch.ones(4, dtype=torch.float64), w)
    scale = (left @ left.T).diagonal()  # variances of the deviations, when those of means are 1
    form = left.T @ torch.diag(w.square() / scale) @ left
    assert float(form.diagonal().sum()) == pytest.approx(float(w.square().sum()))  # no bias
    assert float(found.error) == pytest.approx(math.sqrt(float(y @ form @ y)))
    eigen = torch.linalg.eigvalsh(form)
    assert float(found.freedom) == pytest.approx(float(eigen.sum() ** 2 / eigen.square().sum()))
    assert float(found.freedom) < 3


def test_holes_are_left_out_and_columns_do_not_mix():
    rng = torch.Generator().manual_seed(1)
    values = torch.randn(20, 2, generator=rng, dtype=torch.float64)
    owner = torch.arange(20) % 5
    holes = values.clone()
    holes[owner == 3, 0] = torch.nan
    got, alone = cluster_means(holes, owner), cluster_means(values[owner != 3], owner[owner != 3])
    assert float(got.error[0]) == pytest.approx(float(alone.error[0]))
    assert got.units.tolist() == [4, 5]
    assert float(got.error[1]) == pytest.approx(float(cluster_means(values, owner).error[1]))


def test_one_client_has_its_targets_as_units_and_one_target_no_interval():
    rng = torch.Generator().manual_seed(2)
    values = torch.randn(12, 1, generator=rng, dtype=torch.float64)
    test = stats.ttest_1samp(values[:, 0].numpy(), 0.0).confidence_interval(0.95)
    one = cluster_means(values, torch.zeros(12, dtype=torch.int64))
    assert ends(one) == pytest.approx([test.low, test.high]) and one.units.tolist() == [12]
    assert ends(cluster_means(values[:1], torch.zeros(1, dtype=torch.int64))) is None


# --- shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [2, 3, 5, 10])
@pytest.mark.slow
def test_shares_hold_their_level_however_alike_a_clients_targets_are(clients):
    rng = np.random.default_rng(clients)
    for sizes in ("even", "uneven"):
        owner = np.repeat(np.arange(clients), SIZES[sizes][clients])
        for chance in (0.02, 0.1, 0.3):
            for alike in (0.0, 0.5, 1.0):
                common = rng.random((clients, 3000)) < chance
                own = rng.random((len(owner), 3000)) < chance
                same = rng.random((len(owner), 3000)) < alike
                hits = torch.from_numpy(np.where(same, common[owner], own).astype(float))
                share = shares(hits, torch.from_numpy(owner))
                low, _ = share.interval()
                assert float((low > chance).double().mean()) <= 0.03, (sizes, chance, alike)
                p = share.p_above(torch.full((3000,), chance, dtype=torch.float64))
                assert torch.equal(p < 0.025, low > chance)


def test_six_of_six_is_no_certainty():
    """Nothing varies, so targets of one client count as one trial: the exact bound of as many."""
    hits = torch.ones(6, 1, dtype=torch.float64)
    for owner, clients in (([0, 1, 2, 3, 4, 5], 6), ([0, 0, 1, 1, 2, 3], 4)):
        share = shares(hits, torch.tensor(owner))
        low, high = share.interval()
        assert float(low) == pytest.approx(0.025 ** (1 / clients)) and float(high) == 1
    none = shares(0 * hits, torch.arange(6)).interval()
    assert float(none[0]) == 0 and float(none[1]) == pytest.approx(1 - 0.025 ** (1 / 6))


def test_a_share_of_clients_of_one_target_each_is_the_exact_binomial():
    hits = torch.tensor([1.0] * 7 + [0.0] * 13, dtype=torch.float64)
    low, high = shares(hits[:, None], torch.arange(20)).interval()
    exact = stats.binomtest(7, 20).proportion_ci(0.95)
    # the variance with n - 1 in place of n: 19 trials
    assert float(low) == pytest.approx(exact.low, abs=0.01)
    assert float(high) == pytest.approx(exact.high, abs=0.01)


def test_values_that_do_not_vary_prove_no_more_than_their_number_of_clients():
    same = cluster_means(torch.full((12, 1), 0.7), torch.arange(12) % 6)
    low, high = same.interval(bounds=(-1.0, 1.0))
    assert float(low) < 0.2 and float(high) > 0.9
    assert float(same.p_above()) == pytest.approx(0.5**6)
    assert float(same.p_above(0.7)) == 1


# --- resamples ------------------------------------------------------------------------------------


def test_resamples_of_few_clients_are_widened():
    """Of a mean, resampling clients of equal size gives the same as the formula."""
    rng = torch.Generator().manual_seed(0)
    for count in (2, 3, 5, 10):
        means = torch.randn(count, 1, generator=rng, dtype=torch.float64)
        weights = torch.ones(count, 1, dtype=torch.float64)
        picks = torch.randint(count, (40000, count), generator=rng)
        draws = means[:, 0][picks].mean(1, keepdim=True)
        found, formula = (
            bootstrap_estimate(draws, means.mean(0), weights[:, 0]),
            weighted_estimates(means, weights),
        )
        assert float(found.error) == pytest.approx(float(formula.error), rel=0.02)
        assert float(found.freedom) == pytest.approx(count - 1)


def test_one_client_keeps_the_error_of_its_own_cases():
    draws = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0)).double()
    found = bootstrap_estimate(draws, torch.zeros(1), torch.ones(1))
    assert ends(found) == pytest.approx([-1.96, 1.96], abs=0.06)
