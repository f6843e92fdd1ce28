"""Scores of label inference against answers worked out by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.eval.label_scores import (
    evaluate_labels,
    l1_error,
    size_error,
    support_scores,
)

COUNTS = torch.tensor([[10, 0, 0, 30], [0, 5, 5, 0], [20, 20, 0, 0], [0, 0, 8, 8]])


def estimate(
    support: Tensor | None = None, proportions: Tensor | None = None, sizes: Tensor | None = None
) -> LabelEstimate:
    unknown = torch.full(COUNTS.shape, torch.nan)
    return LabelEstimate(
        clients=torch.arange(4),
        support=unknown if support is None else support,
        proportions=unknown if proportions is None else proportions,
        sizes=unknown[:, 0] if sizes is None else sizes,
        notes=(),
    )


def shares() -> Tensor:
    return COUNTS / COUNTS.sum(1, keepdim=True)


def together() -> Tensor:
    return COUNTS.sum(0) / COUNTS.sum()


def test_support_by_hand():
    support = torch.tensor([[0.9, 0.6, 0.5, 0.1], [0.0, 0.0, 0.0, 0.0], [torch.nan] * 4])
    held = torch.tensor([[True, False, False, True]] * 3)
    found = support_scores(support, held)
    assert found["precision"][0] == 0.5 and found["recall"][0] == 0.5
    assert found["jaccard"][0] == pytest.approx(1 / 3)
    assert found["precision"][1].isnan() and found["recall"][1] == 0 and found["jaccard"][1] == 0
    assert all(values[2].isnan() for values in found.values())


def test_shares_and_sizes_by_hand():
    assert l1_error(torch.tensor([[0.5, 0.5, 0, 0]]), COUNTS[:1]).tolist() == [1.5]
    assert size_error(torch.tensor([30.0, 50.0]), torch.tensor([40, 40])).tolist() == [0.25, 0.25]


def test_an_exact_answer_is_exact_and_beats_every_guess():
    found = evaluate_labels(estimate((COUNTS > 0).float(), shares(), COUNTS.sum(1).float()), COUNTS)
    for measure, best in (("precision", 1), ("recall", 1), ("jaccard", 1), ("l1", 0)):
        assert found.get(measure).value == pytest.approx(best, abs=1e-6)
    assert found.get("size_error").value == pytest.approx(0, abs=1e-6)
    for measure in ("precision", "jaccard", "l1", "size_error"):
        assert found.get(measure).over > 0.2 and found.get(measure).n == 4
        assert found.get(measure).p <= 0.5**4  # no more than four clients can say
    assert found.rows["samples"].tolist() == [40, 10, 40, 16]
    assert found.rows["classes"].tolist() == [2, 2, 2, 2]
    json.dumps(found.record(), allow_nan=False)


def test_the_guesses_themselves_gain_nothing():
    everything = torch.ones(COUNTS.shape)
    size = COUNTS.sum(1).double().log().mean().exp().expand(4)
    found = evaluate_labels(estimate(everything, together().expand(4, -1), size), COUNTS)
    assert found.get("jaccard").floor_name == "all classes"
    assert found.get("jaccard").floor == pytest.approx(0.5)
    assert found.get("jaccard").over == pytest.approx(0)
    assert found.get("size_error").over == pytest.approx(0)
    assert found.get("l1").over <= 1e-12  # or the uniform guess is better still
    even = torch.full(COUNTS.shape, 0.25)
    assert evaluate_labels(estimate(proportions=even), COUNTS).get("l1").over <= 1e-12


def test_the_best_guess_is_taken():
    skewed = torch.tensor([[90, 10, 0, 0]] * 4)
    found = evaluate_labels(estimate((skewed > 0).float(), skewed / 100), skewed)
    assert found.get("l1").floor_name == "shares of all clients"
    assert found.get("jaccard").floor_name == "classes most clients hold"
    assert found.get("l1").over == pytest.approx(0, abs=1e-6)


def test_what_was_not_said_is_none():
    found = evaluate_labels(estimate((COUNTS > 0).float()), COUNTS)
    for measure in ("l1", "size_error"):
        assert found.get(measure).value is None and found.get(measure).n == 0
        assert found.get(measure).floor is not None
        assert bool(found.rows[measure].isna().all())
    some = shares()
    some[2] = torch.nan
    found = evaluate_labels(estimate(proportions=some), COUNTS)
    guesses = [l1_error(q.expand(4, -1), COUNTS)[2] for q in (torch.ones(4) / 4, together())]
    assert found.get("l1").n == 4  # silence about one client is the worst guess about it
    assert found.rows["l1"][2] == pytest.approx(float(max(guesses)))


def test_silence_does_not_pay():
    """An attack that is silent where it is worst scores no higher than one that guesses there."""
    wrong = shares()
    wrong[2] = torch.tensor([0.0, 0, 0, 1])
    quiet, guess = wrong.clone(), wrong.clone()
    quiet[2], guess[2] = torch.nan, 0.25
    error = {
        name: evaluate_labels(estimate(proportions=q), COUNTS).get("l1").value
        for name, q in (("quiet", quiet), ("guess", guess))
    }
    assert error["quiet"] >= error["guess"]


def test_clients_are_looked_up_by_number():
    full = estimate((COUNTS > 0).float(), shares(), COUNTS.sum(1).float())
    some = LabelEstimate(
        torch.tensor([3, 1]), full.support[[3, 1]], full.proportions[[3, 1]], full.sizes[[3, 1]], ()
    )
    assert evaluate_labels(some, COUNTS).get("l1").value == pytest.approx(0, abs=1e-6)
    with pytest.raises(IncompatibleError, match="do not cover clients"):
        evaluate_labels(some, COUNTS[:3])
    with pytest.raises(IncompatibleError, match="4 classes"):
        evaluate_labels(some, COUNTS[:, :3])
