"""Scores of recovered prototypes against hand-made ones."""

from __future__ import annotations

import math

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.eval.prototype_scores import TruePrototypes, evaluate_prototypes

TRUTH = torch.tensor([[0.0, 0.0, 5.0], [2.0, 0.0, 5.0], [1.0, 3.0, 5.0], [4.0, 0.0, 3.0]])
CLIENTS = torch.tensor([1, 1, 1, 8])
LABELS = torch.tensor([0, 4, 7, 4])
COUNTS = torch.tensor([1, 2, 31, 30])
TRUE = {"vectors": TRUTH, "clients": CLIENTS, "labels": LABELS, "counts": COUNTS, "floors": {}}


def score_vectors(vectors, clients, labels, **truth):
    return TruePrototypes(**TRUE | truth).compare(vectors, clients, labels)


def test_the_truth_scores_perfectly():
    order = torch.tensor([2, 0, 3, 1])
    found = score_vectors(TRUTH[order], CLIENTS[order], LABELS[order])
    assert found.relative_error.tolist() == [0, 0, 0, 0]
    assert found.centred_cosine[:3].tolist() == pytest.approx([1, 1, 1])
    assert found.identified[:3].tolist() == [1, 1, 1]
    assert math.isnan(found.centred_cosine[3]) and math.isnan(found.identified[3])
    assert found.chance.tolist() == pytest.approx([1 / 3] * 3 + [1])
    assert bool(found.answered.all())


def test_one_vector_for_all_classes_identifies_one_at_most():
    common = TRUTH[:3].mean(0)
    found = score_vectors(common.expand(3, -1), CLIENTS[:3], LABELS[:3])
    plain = torch.cosine_similarity(common[None], TRUTH[:3])
    assert float(plain.mean()) > 0.9  # why plain cosine is no score
    assert found.centred_cosine[:3].tolist() == [0, 0, 0]
    # at (1, 1, 5) the nearest of the three is shared by the first two
    assert found.identified[:3].tolist() == [0.5, 0.5, 0]


def test_by_hand():
    answer = TRUTH.clone()
    answer[0] = torch.tensor([0.0, 3.0, 1.0])
    answer[3] = 0
    found = score_vectors(answer, CLIENTS, LABELS)
    assert found.relative_error.tolist() == pytest.approx([1.0, 0, 0, 1])
    # centre (1, 1, 5): (-1, 2, -4) against (-1, -1, 0)
    assert float(found.centred_cosine[0]) == pytest.approx(-1 / (21**0.5 * 2**0.5))
    assert found.identified[:3].tolist() == [0, 1, 1]


def test_swapped_classes_are_not_identified():
    found = score_vectors(TRUTH[[1, 0, 2, 3]], CLIENTS, LABELS)
    assert found.identified[:3].tolist() == [0, 0, 1] and float(found.centred_cosine[:2].max()) < 1


def test_no_answer_is_nan_and_harms_no_other():
    answer = TRUTH.clone()
    answer[1] = torch.nan
    keep = torch.tensor([1, 2, 3])
    found = score_vectors(answer[keep], CLIENTS[keep], LABELS[keep])
    assert found.answered.tolist() == [False, False, True, True]
    assert found.identified.isnan().tolist() == [True, True, False, True]
    assert float(found.identified[2]) == 1


def test_refusals():
    with pytest.raises(IncompatibleError, match="different extractors"):
        score_vectors(TRUTH[:, :2], CLIENTS, LABELS)
    with pytest.raises(IncompatibleError, match=r"4 vectors with .*\[3, 4\]"):
        score_vectors(TRUTH, CLIENTS[:3], LABELS)
    with pytest.raises(IncompatibleError, match=r"4 true vectors with .*\[4, 4, 2\]"):
        score_vectors(TRUTH, CLIENTS, LABELS, counts=COUNTS[:2])
    with pytest.raises(IncompatibleError, match="Two answers"):
        score_vectors(TRUTH, CLIENTS, torch.tensor([0, 0, 7, 4]))


def test_answers_for_classes_that_nobody_holds_are_counted():
    truth = TruePrototypes(
        vectors=torch.eye(3), clients=torch.tensor([0, 0, 1]), labels=torch.tensor([0, 2, 1]),
        counts=torch.full((3,), 5), floors={"public": torch.ones(3, 3)},
    )  # fmt: skip
    labels = torch.tensor([0, 1, 2, 1, 2])
    clients = torch.tensor([0, 0, 0, 1, 1])
    vectors = torch.rand(5, 3)
    vectors[4] = torch.nan  # given up, so no answer
    nothing = torch.full((5,), torch.nan)
    said = RecoveredPrototypes(
        vectors, clients, labels, torch.ones(5, dtype=torch.int64),
        torch.ones(5, dtype=torch.int64), nothing, nothing, (),
    )  # fmt: skip
    found = evaluate_prototypes(said, truth).get("false_classes")
    assert (found.value, found.n) == (0.25, 4)
