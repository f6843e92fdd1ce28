"""From uploads to features, from features to shares, from shares to scores."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.attacks.common.upload_features import Scale, blocks_of, class_counts_of
from fedre_privacy.attacks.property import _draw_share, _tilt_weights, fitted_shares
from fedre_privacy.core.artifacts import Counts, HeadState, Prototypes, Representations
from fedre_privacy.core.channels import NOTHING
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Property
from fedre_privacy.eval.membership import auc


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "features"), dtype=torch.float64)


def test_vectors_with_labels_become_means_of_classes():
    reps, labels = normal(6, 3).float(), torch.tensor([0, 0, 2, 2, 2, 1])
    (block,) = blocks_of([Representations(reps, labels)], 4, {}).values()
    for label in range(3):
        assert torch.allclose(block[label], reps[labels == label].double().mean(0))
    assert bool(block[3].isnan().all())
    one = blocks_of([Prototypes(reps[5:], torch.tensor([1]))], 4, {})
    # what is common to all is out; a client's features are the mean over the classes that it has
    scale = Scale([{"0 classes": block}, one])
    assert scale([one]).shape == (1, 3) and bool(scale([one]).isfinite().all())


def test_large_tensors_are_sketched_alike_for_everybody():
    big = {"weight": normal(40, 100).float(), "bias": normal(7).float()}
    state = HeadState(big)
    first, again = blocks_of([state], 4, {}), blocks_of([state], 4, {})
    assert sorted(len(v) for v in first.values()) == [7, 256]
    assert all(v.equal(again[n]) for n, v in first.items())
    double = blocks_of([HeadState({n: 2 * v for n, v in big.items()})], 4, {})
    assert all(torch.allclose(double[n], 2 * v) for n, v in first.items())
    lengths = [float(v.square().sum()) for v in first.values() if len(v) == 256]
    assert lengths[0] == pytest.approx(float(big["weight"].double().square().sum()), rel=0.3)


def test_counts_are_read_where_they_are_told():
    labels = torch.tensor([0, 0, 2])
    sent = [Representations(normal(3, 2).float(), labels)]
    assert class_counts_of(sent, 3, NOTHING).tolist() == [2, 0, 1]
    named = Prototypes(normal(2, 2).float(), torch.tensor([0, 2]))
    told = class_counts_of([named, Counts(torch.tensor([5, 3]))], 3, NOTHING)
    assert told is not None and told.tolist() == [5, 0, 3]
    assert class_counts_of([named], 3, NOTHING) is None


def test_shares_are_learnt_where_they_show_and_not_where_they_do_not():
    direction, train, test = normal(50, 2, seed=1) / 4, normal(120, 50), normal(60, 50, seed=2)
    shares, truth = (train @ direction).sigmoid(), (test @ direction).sigmoid()
    groups = torch.arange(120) % 5
    found = fitted_shares(train, shares, groups, test)
    shuffled = fitted_shares(train, shares[torch.randperm(120, generator=stream(3, "s"))],
                             groups, test)  # fmt: skip
    for column in range(2):
        has = truth[:, column] > 0.5
        assert auc(found[:, column], has) > 0.9
        assert auc(shuffled[:, column], has) < 0.75


def test_the_penalised_fit_is_where_its_slope_is_zero():
    rows, shares = normal(40, 5), torch.rand(40, 1, generator=stream(4, "t")).double()
    found = fitted_shares(rows, shares, torch.arange(40) % 5, rows)
    # the constant is hardly penalised: the mean of what is found is the mean of the shares
    assert float(found.mean()) == pytest.approx(float(shares.mean()), abs=1e-3)


def test_rehearsals_have_a_property_as_often_as_not():
    asked, rng = Property("a third", 0.3), stream(5, "wanted")
    shares = torch.tensor([_draw_share(asked, rng) for _ in range(2000)])
    assert 0 <= float(shares.min()) and float(shares.max()) <= 0.8
    assert float((shares > 0.3).double().mean()) == pytest.approx(0.5, abs=0.05)
    weight = torch.rand(50, generator=rng, dtype=torch.float64)
    mask = torch.arange(50) < 10
    tilted = _tilt_weights(weight, mask, 0.7)
    assert float(tilted[mask].sum() / tilted.sum()) == pytest.approx(0.7)
    assert _tilt_weights(weight, mask & False, 0.7).equal(weight)
