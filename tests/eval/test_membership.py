"""Scores of membership inference against answers worked out by hand or by scikit-learn."""

from __future__ import annotations

import json

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.eval.membership import GRANTED, auc, evaluate_membership


def trial(gap: float, *, each: int = 30, clients: int = 6, classes: int = 2, seed: int = 0):
    """Scores of members and others a number of standard deviations apart."""
    count = clients * classes * each * 2
    members = torch.arange(count) % 2 == 0
    owner = torch.arange(count) * clients // count
    labels = torch.arange(count) // 2 % classes
    scores = torch.randn(count, generator=stream(seed, "trial")) + gap * members
    return scores, members, owner, labels


def report(scores: Tensor, *rest: Tensor, **more):
    return evaluate_membership(scores, *rest, **{"draws": 300, **more})


def auc_of(*given: Tensor, **more):
    return report(*given, **more).get("auc")


def test_the_area_is_that_of_scikit_learn_with_ties():
    scores, members, _, _ = trial(0.7)
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
    assert found.diverged == 2 and found.get("auc").value == pytest.approx(2.5 / 4)


def test_only_pairs_of_one_client_and_class_count():
    # The classes and clients differ by far more than members do; inside each the order is right.
    scores, members, owner, labels = trial(0.0)
    scores = members + 100.0 * labels + 1000.0 * owner
    found = report(scores, members, owner, labels)
    # no error in any resample: as sure as one trial per client is, not surer
    area = found.get("auc")
    low = 0.025 ** (1 / area.clients)
    assert area.value == 1 and area.interval == pytest.approx((low, 1))
    assert found.get("balanced_accuracy").value == 1
    assert auc_of(-scores, members, owner, labels).value == 0


def test_the_leak_of_the_support_is_told_apart():
    scores, members, owner, labels = trial(0.0)
    absent = ~members & (torch.arange(len(members)) % 3 == 0)
    labels = torch.where(absent, 9, labels)  # a class that the client does not hold
    scores = torch.where(absent, scores.min(), scores)
    found = report(scores, members, owner, labels)
    assert abs(found.get("auc").value - 0.5) < 0.08
    assert found.get("auc_across_classes").value > 0.6
    assert found.n == found.get("auc").n == int((~absent).sum())


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_the_interval_holds_the_expected_area(gap):
    expected = float(torch.distributions.Normal(0, 1).cdf(torch.tensor(gap / 2**0.5)))
    hits = 0
    for seed in range(20):
        low, high = auc_of(*trial(gap, seed=seed)).interval
        assert low < high
        hits += low <= expected <= high
    assert hits >= 16


def test_clients_that_differ_widen_the_interval():
    scores, members, owner, labels = trial(0.0)
    same = scores + 1.0 * members
    split = scores + 2.0 * members * (owner < 3)
    narrow, wide = (auc_of(s, members, owner, labels).interval for s in (same, split))
    assert wide[1] - wide[0] > 1.7 * (narrow[1] - narrow[0])


def test_the_gain_over_the_baseline_is_paired():
    scores, members, owner, labels = trial(0.5)
    found = auc_of(scores, members, owner, labels, baseline=scores - 0.1 * members, beside=GRANTED)
    below, above = found.over_interval
    assert 0 < below < found.over < above < 0.06
    assert found.interval[0] < found.floor  # unpaired, they overlap
    equal = auc_of(scores, members, owner, labels, baseline=scores.clone(), beside=GRANTED)
    assert equal.over == 0 and equal.over_interval == (0, 0)
    alone = auc_of(scores, members, owner, labels)
    assert alone.floor is None and alone.over_interval is None


def test_model_and_image_stand_beside_each_other():
    scores, members, owner, labels = trial(1.0)
    noise = torch.randn(len(scores), generator=stream(3, "floor")).double()
    found = report(scores, members, owner, labels, baseline=scores, floor=noise)
    model, image = found.get("auc_over_model"), found.get("auc")
    assert model.over == 0 and model.floor == model.value == image.value
    assert abs(image.floor - 0.5) < 0.08
    assert image.over == pytest.approx(image.value - image.floor)
    assert image.over_interval[0] > 0
    only = report(scores, members, owner, labels, floor=noise)
    assert only.get("auc").floor == image.floor and only.find("auc_over_model") is None
    assert "baseline" not in only.rows and only.rows["floor"].notna().all()
    turned = report(scores, members, owner, labels, baseline=scores, floor=noise, beside=GRANTED)
    assert turned.get("auc").floor == model.floor
    assert turned.get("auc_over_image").over_interval == image.over_interval
    assert (found.verdict.word, turned.verdict.word) == ("leaks", "no evidence")
    assert "over the model alone" in turned.verdict.because


def test_low_rates_need_enough_others():
    found = report(*trial(1.0, each=30))  # 360 others
    few = found.get("tpr_at_fpr_0.001")
    assert found.get("tpr_at_fpr_0.01").value is not None and few.value is None
    assert "360 candidates" in few.over_text() and "at least 1000" in few.over_text()
    many = report(*trial(1.0, each=100), draws=20).get("tpr_at_fpr_0.001")
    assert many.value is not None and many.note == ""


def test_a_rate_by_hand():
    others = torch.arange(200).double()
    inside = torch.tensor([150.0, 197.5, 198.5, 500.0])
    scores, members = torch.cat([inside, others]), torch.arange(204) < 4
    zeros = torch.zeros(204).long()
    found = report(scores, members, zeros, zeros)
    assert (
        found.get("tpr_at_fpr_0.01").value == 0.75
    )  # two of 200 may be above: the threshold is 197
    answered, best = found.get("balanced_accuracy"), found.get("balanced_accuracy_best")
    assert answered.value == pytest.approx((1 + 102 / 200) / 2, abs=0.01)
    assert best.value >= answered.value


def test_scores_without_information_are_at_the_floor():
    found = report(*trial(0.0, each=100), draws=100)
    assert abs(found.get("auc").value - 0.5) < 0.04
    assert abs(found.get("balanced_accuracy").value - 0.5) < 0.04
    assert found.get("auc").interval[0] < 0.5 < found.get("auc").interval[1]
    assert found.get("tpr_at_fpr_0.01").value < 0.04


def test_groups_by_class_size():
    scores, members, owner, labels = trial(0.0)
    sizes = torch.where(labels == 0, 1, 100)
    scores = torch.where(sizes == 1, scores + 3.0 * members, scores)
    found = report(scores, members, owner, labels, class_sizes=sizes)
    assert found.get("auc", "1").value > 0.95 and abs(found.get("auc", ">30").value - 0.5) < 0.08
    assert found.find("auc", "2-30") is None
    assert found.get("auc", "1").n == int((sizes == 1).sum())


def test_areas_are_means_over_pairs_and_the_order_of_candidates_changes_nothing():
    scores, members, owner, labels = trial(0.6)
    found = report(scores, members, owner, labels, baseline=-scores)
    assert found.rows["member"].tolist() == members.tolist()
    parts = []
    for client in range(6):
        for label in (0, 1):
            here = (owner == client) & (labels == label)
            parts.append(auc(scores[here], members[here]))
    assert found.get("auc").value == pytest.approx(sum(parts) / len(parts))
    assert found.get("auc_over_model").floor == pytest.approx(1 - sum(parts) / len(parts))
    order = torch.randperm(len(scores), generator=stream(0, "order"))
    turned = report(scores[order], members[order], owner[order], labels[order])
    assert turned.get("auc").value == pytest.approx(found.get("auc").value)
    json.dumps(found.record(), allow_nan=False)


def test_one_client_and_same_seed():
    given = trial(0.5, clients=1)
    first, second = auc_of(*given, seed=4), auc_of(*given, seed=4)
    assert first == second and first != auc_of(*given, seed=5)
    assert first.interval[0] < first.value < first.interval[1]


def test_refusals():
    scores, members, owner, labels = trial(0.5)
    with pytest.raises(IncompatibleError, match="one entry per candidate"):
        report(scores[:-1], members, owner, labels)
    with pytest.raises(IncompatibleError, match="0 others"):
        report(scores, torch.ones_like(members), owner, labels)
