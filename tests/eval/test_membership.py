"""Scores of membership inference against answers worked out by hand or by scikit-learn."""

from __future__ import annotations

import json

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.eval.membership import auc, evaluate_membership


def game(gap: float, *, each: int = 30, clients: int = 6, classes: int = 2, seed: int = 0):
    """Scores of members and others a number of standard deviations apart."""
    count = clients * classes * each * 2
    members = torch.arange(count) % 2 == 0
    owner = torch.arange(count) * clients // count
    labels = torch.arange(count) // 2 % classes
    scores = torch.randn(count, generator=stream(seed, "game")) + gap * members
    return scores, members, owner, labels


def report(scores: Tensor, *rest: Tensor, **more):
    return evaluate_membership(scores, *rest, **{"draws": 300, **more})


def test_the_area_is_that_of_scikit_learn_with_ties():
    scores, members, _, _ = game(0.7)
    for values in (scores, scores.round()):
        expected = roc_auc_score(members, values)
        assert auc(values, members) == pytest.approx(expected, abs=1e-9)
    assert auc(torch.ones(4), torch.tensor([1, 0, 1, 0])) == 0.5
    assert auc(torch.ones(2), torch.tensor([1, 1])) != auc(torch.ones(2), torch.tensor([1, 1]))


def test_nan_counts_as_the_lowest():
    scores = torch.tensor([torch.nan, 1.0, 0.5, torch.nan])
    members = torch.tensor([True, True, False, False])
    # pairs: nan-0.5 lost, nan-nan half, 1-0.5 won, 1-nan won
    assert auc(scores, members) == pytest.approx(2.5 / 4)
    found = report(scores, members, torch.zeros(4).long(), torch.zeros(4).long())
    assert found.summary["without_score"] == 2 and found.summary["auc"] == pytest.approx(2.5 / 4)


def test_only_pairs_of_one_client_and_class_count():
    # The classes and clients differ by far more than members do; inside each the order is right.
    scores, members, owner, labels = game(0.0)
    scores = members + 100.0 * labels + 1000.0 * owner
    found = report(scores, members, owner, labels).summary
    # no error in any resample: as sure as one trial per client is, not surer
    low = 0.025 ** (1 / found["clients"])
    assert found["auc"] == 1 and found["auc_ci"] == pytest.approx([low, 1])
    assert found["balanced_accuracy"] == 1
    reverse = report(-scores, members, owner, labels).summary
    assert reverse["auc"] == 0


def test_the_leak_of_the_support_is_told_apart():
    scores, members, owner, labels = game(0.0)
    absent = ~members & (torch.arange(len(members)) % 3 == 0)
    labels = torch.where(absent, 9, labels)  # a class that the client does not hold
    scores = torch.where(absent, scores.min(), scores)
    found = report(scores, members, owner, labels).summary
    assert abs(found["auc"] - 0.5) < 0.08 and found["auc_across_classes"] > 0.6
    assert found["compared"] == int((~absent).sum())


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_the_interval_holds_the_expected_area(gap):
    expected = float(torch.distributions.Normal(0, 1).cdf(torch.tensor(gap / 2**0.5)))
    hits = 0
    for seed in range(20):
        low, high = report(*game(gap, seed=seed)).summary["auc_ci"]
        assert low < high
        hits += low <= expected <= high
    assert hits >= 16


def test_clients_that_differ_widen_the_interval():
    scores, members, owner, labels = game(0.0)
    same = scores + 1.0 * members
    split = scores + 2.0 * members * (owner < 3)
    narrow, wide = (report(s, members, owner, labels).summary["auc_ci"] for s in (same, split))
    assert wide[1] - wide[0] > 1.7 * (narrow[1] - narrow[0])


def test_the_gain_over_the_baseline_is_paired():
    scores, members, owner, labels = game(0.5)
    found = report(scores, members, owner, labels, baseline=scores - 0.1 * members).summary
    below, above = found["above_baseline_ci"]
    assert 0 < below < found["above_baseline"] < above < 0.06
    assert found["auc_ci"][0] < found["auc_baseline"]  # unpaired, they overlap
    equal = report(scores, members, owner, labels, baseline=scores.clone()).summary
    assert equal["above_baseline"] == 0 and equal["above_baseline_ci"] == [0, 0]
    alone = report(scores, members, owner, labels).summary
    for name in ("baseline", "floor"):
        assert alone[f"auc_{name}"] is None and alone[f"above_{name}_ci"] is None


def test_baseline_and_floor_stand_beside_each_other():
    scores, members, owner, labels = game(1.0)
    noise = torch.randn(len(scores), generator=stream(3, "floor")).double()
    found = report(scores, members, owner, labels, baseline=scores, floor=noise).summary
    assert found["above_baseline"] == 0 and found["auc_baseline"] == found["auc"]
    assert abs(found["auc_floor"] - 0.5) < 0.08
    assert found["above_floor"] == pytest.approx(found["auc"] - found["auc_floor"])
    assert found["above_floor_ci"][0] > 0
    only = report(scores, members, owner, labels, floor=noise)
    assert only.summary["auc_floor"] == found["auc_floor"] and only.summary["auc_baseline"] is None
    assert only.rows["auc_baseline"].isna().all() and only.rows["auc_floor"].notna().all()


def test_low_rates_need_enough_others():
    found = report(*game(1.0, each=30)).summary  # 360 others
    assert found["tpr_at_fpr_0.01"] is not None and found["tpr_at_fpr_0.001"] is None
    assert "360 candidates" in found["tpr_at_fpr_0.001_reason"]
    assert "at least 1000" in found["tpr_at_fpr_0.001_reason"]
    many = report(*game(1.0, each=100), draws=20).summary
    assert many["tpr_at_fpr_0.001"] is not None and many["tpr_at_fpr_0.001_reason"] is None


def test_a_rate_by_hand():
    others = torch.arange(200).double()
    inside = torch.tensor([150.0, 197.5, 198.5, 500.0])
    scores, members = torch.cat([inside, others]), torch.arange(204) < 4
    zeros = torch.zeros(204).long()
    found = report(scores, members, zeros, zeros).summary
    assert found["tpr_at_fpr_0.01"] == 0.75  # two of 200 may be above: the threshold is 197
    assert found["balanced_accuracy"] == pytest.approx((1 + 102 / 200) / 2, abs=0.01)
    assert found["balanced_accuracy_best"] >= found["balanced_accuracy"]


def test_scores_without_information_are_at_the_floor():
    found = report(*game(0.0, each=100), draws=100).summary
    assert abs(found["auc"] - 0.5) < 0.04 and abs(found["balanced_accuracy"] - 0.5) < 0.04
    assert found["auc_ci"][0] < 0.5 < found["auc_ci"][1]
    assert found["tpr_at_fpr_0.01"] < 0.04


def test_groups_by_class_size():
    scores, members, owner, labels = game(0.0)
    sizes = torch.where(labels == 0, 1, 100)
    scores = torch.where(sizes == 1, scores + 3.0 * members, scores)
    groups = report(scores, members, owner, labels, class_sizes=sizes).summary["by_class_size"]
    assert groups["1"]["auc"] > 0.95 and abs(groups[">30"]["auc"] - 0.5) < 0.08
    assert groups["2-30"] is None
    assert groups["1"]["members"] == int((members & (sizes == 1)).sum())


def test_rows_are_clients_and_the_order_of_candidates_changes_nothing():
    scores, members, owner, labels = game(0.6)
    found = report(scores, members, owner, labels, baseline=-scores)
    assert found.rows["client"].tolist() == list(range(6))
    here = owner == 2
    parts = [auc(scores[here & (labels == c)], members[here & (labels == c)]) for c in (0, 1)]
    assert found.rows["auc"][2] == pytest.approx(sum(parts) / 2)
    assert found.rows["auc_baseline"][2] == pytest.approx(1 - sum(parts) / 2)
    order = torch.randperm(len(scores), generator=stream(0, "order"))
    turned = report(scores[order], members[order], owner[order], labels[order])
    assert turned.summary["auc"] == pytest.approx(found.summary["auc"])
    json.dumps(found.summary, allow_nan=False)


def test_one_client_and_same_seed():
    given = game(0.5, clients=1)
    first, second = report(*given, seed=4).summary, report(*given, seed=4).summary
    assert first == second and first != report(*given, seed=5).summary
    assert first["auc_ci"][0] < first["auc"] < first["auc_ci"][1]


def test_refusals():
    scores, members, owner, labels = game(0.5)
    with pytest.raises(IncompatibleError, match="one entry per candidate"):
        report(scores[:-1], members, owner, labels)
    with pytest.raises(IncompatibleError, match="0 others"):
        report(scores, torch.ones_like(members), owner, labels)
