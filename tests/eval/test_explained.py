"""An attack whose answers do not explain the upload has not shown that nothing leaks."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.eval import evaluate
from fedre_privacy.eval.explained_share import ExplainedShare
from fedre_privacy.eval.verdict import INCONCLUSIVE, LEAKS, NO_EVIDENCE, NOT_EXPLAINED

SHADE = 0.5
"""Pixels of the attack's answers, of which the first says to which target it is: all but a floor's
answer, and as far from the truth."""


@pytest.fixture
def judge(make_truth, make_rec, public):
    """Score answers of one shade that explain a share of the targets; all floors explain half."""

    def made(share=None, *, sizes=(1,) * 60, clients=60, images=None, spread=0.0, **more):
        rng = torch.Generator().manual_seed(1)

        truth = make_truth(list(sizes), clients=clients)
        answers = torch.full((len(sizes), *truth.images.shape[1:]), SHADE)
        answers[:, 0, 0, 0] = torch.linspace(0.1, 0.4, len(sizes))

        def told(given):
            mine = (given == answers).flatten(1).all(1)
            return torch.where(mine, share, 0.5) + spread * torch.randn(len(mine), generator=rng)

        explained = None if share is None else ExplainedShare(share=told, compared="a test")
        rec = make_rec(answers if images is None else images(truth))
        return evaluate(rec, truth, public, metrics={}, explained=explained, **more)

    return made


def test_without_the_measure_nothing_changes(judge):
    found = judge()
    assert found.verdict.word == NO_EVIDENCE and found.find("explained") is None


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_answers_that_explain_no_more_than_floors_are_not_explained(judge, share):
    found = judge(share)
    assert found.verdict.word == NOT_EXPLAINED and NOT_EXPLAINED in found.verdict.rule
    measure = found.get("explained")
    assert measure.value == pytest.approx(share) and measure.floor == pytest.approx(0.5)
    assert measure.over == pytest.approx(share - 0.5) and measure.higher_is_more_leakage
    because = found.verdict.because
    assert f"The answers explain {share:.3f} of what was uploaded, the floor's 0.500" in because
    causes = (
        "batch-norm mode",
        "normalisation",
        "kind of upload",
        "other weights",
        "order of rows",
    )
    assert sorted(causes, key=because.index) == list(causes)
    assert any(row["metric"] == "upload explained" for row in found.table())
    assert {"explained", "explained_floor"} <= set(found.rows)


def test_answers_that_explain_more_keep_their_verdict(judge):
    found = judge(0.51)
    assert found.verdict.word == NO_EVIDENCE and "explain" not in found.verdict.because


def test_more_that_may_be_chance_does_not_reassure(judge):
    found = judge(0.55, spread=0.2)
    low, high = found.get("explained").over_interval
    assert low < 0 < found.get("explained").over < high
    assert found.verdict.word == NOT_EXPLAINED


def test_what_leaks_leaks_whatever_is_explained(judge):
    found = judge(
        0.0, images=lambda truth: truth.images[truth.mixture.sample], mismatch="It does not fit"
    )
    assert found.verdict.word == LEAKS and "It does not fit" not in found.verdict.because


def test_true_images_that_do_not_make_the_upload_forbid_reassurance(judge):
    found = judge(0.99, mismatch="It does not fit")
    assert found.verdict.word == NOT_EXPLAINED and ". It does not fit" in found.verdict.because


def test_causes_are_those_that_are_given(judge):
    found = judge(0.1, causes="too few public images")
    assert found.verdict.word == NOT_EXPLAINED
    assert found.verdict.because.split("; n =")[0].endswith("in order: too few public images")


def test_a_few_targets_stay_too_few(judge):
    found = judge(0.1, sizes=(1,) * 4, clients=4)
    assert found.verdict.word == INCONCLUSIVE and "too few" in found.verdict.because
    assert "The answers explain 0.100" in found.verdict.because


def test_a_group_is_judged_by_its_own_share(judge):
    share = torch.tensor([0.9] * 30 + [0.5] * 30)
    found = judge(share, sizes=[1] * 30 + [40] * 30)
    assert found.verdict.groups["1"] == INCONCLUSIVE and found.verdict.word == INCONCLUSIVE
    assert found.verdict.groups[">30"] == NOT_EXPLAINED
    assert "not explained for those of more than 30 images" in found.verdict.because
    assert found.get("explained", "1").over > 0.3 > found.get("explained", ">30").over


def test_targets_that_were_given_up_explain_nothing(judge):
    found = judge(0.9, images=lambda truth: torch.full_like(truth.images, torch.nan))
    assert found.verdict.word == NOT_EXPLAINED and found.get("explained").over == 0
