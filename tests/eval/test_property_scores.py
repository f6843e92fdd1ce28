"""Scores of property inference, beside plain loops over pairs of clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.eval.property_scores import COMMON, NOTHING, evaluate_properties

NAMES = [f"class {c}" for c in range(5)] + ["dark"]
KINDS = ["classes"] * 5 + ["images"]
ABOVE = torch.full((6,), 0.5, dtype=torch.float64)


def shares(clients: int = 12, seed: int = 0) -> Tensor:
    return torch.rand(clients, 6, generator=stream(seed, "shares"), dtype=torch.float64)


def card(scores: Tensor, truth: Tensor, **more: Any):
    return evaluate_properties(
        scores,
        truth,
        ABOVE,
        torch.arange(len(truth)),
        names=NAMES,
        kinds=KINDS,
        told=more.pop("told", {}),
        draws=400,
        **more,
    )


def plain_auc(scores: Tensor, truth: Tensor, columns: range) -> float:
    """Pair by pair, ties half."""
    won, pairs = 0.0, 0
    for column in columns:
        for a in range(len(truth)):
            for b in range(len(truth)):
                if truth[a, column] > 0.5 >= truth[b, column]:
                    one, other = float(scores[a, column]), float(scores[b, column])
                    won += 0.5 if one == other else float(one > other)
                    pairs += 1
    return won / pairs


def test_the_area_is_the_share_of_pairs_in_order():
    truth = shares()
    scores = (truth + torch.rand(truth.shape, generator=stream(1, "x"))).mul(4).round() / 8
    found = card(scores, truth)
    for key, columns in (("", range(6)), ("_classes", range(5)), ("_images", range(5, 6))):
        measure = found.find(f"property_auc{key}")
        assert measure.value == pytest.approx(plain_auc(scores, truth, columns), abs=1e-9)
        assert measure.floor == 0.5 and measure.floor_name == NOTHING
        assert measure.n == 12 * len(columns)
    right = ((scores > 0.5) == (truth > 0.5)).double().mean()
    assert found.find("property_right").value == pytest.approx(float(right))
    common = (truth > 0.5).double().mean(0)
    common = torch.maximum(common, 1 - common).mean()
    measure = found.find("property_right")
    assert measure.floor == pytest.approx(float(common)) and COMMON in found.floors


def test_the_truth_leaks_and_what_labels_say_does_not():
    truth = shares()
    assert card(truth, truth).verdict.word == "leaks"
    same = card(truth, truth, told={"labels": truth})
    assert same.verdict.word == "inconclusive"  # twelve clients bound no AUC
    assert "could still be up to +" in same.verdict.because
    assert same.find("property_auc").floor == 1.0 and same.find("property_auc").over == 0
    assert same.find("property_auc").floor_name == "labels"


def test_silence_is_the_lowest_score_and_few_clients_say_nothing():
    truth = shares()
    quiet = card(torch.full_like(truth, torch.nan), truth)
    assert quiet.find("property_auc").value == 0.5 and quiet.diverged == truth.numel()
    few = card(truth[:4], truth[:4])
    assert few.verdict.word == "inconclusive" and "4 clients of at least 5" in few.verdict.because


def test_scores_that_know_nothing_are_seldom_said_to_leak():
    leaks = 0
    for seed in range(40):
        scores = torch.rand(10, 6, generator=stream(seed, "guess"), dtype=torch.float64)
        leaks += card(scores, shares(10, seed)).verdict.word == "leaks"
    assert leaks <= 3


def test_what_cannot_be_scored_is_refused():
    truth = shares()
    with pytest.raises(IncompatibleError, match="Properties need"):
        card(truth[:, :3], truth)
    with pytest.raises(IncompatibleError, match="by some of 12 clients and not by others"):
        card(truth, torch.ones_like(truth))
