"""What an attack says of its own answers, scored."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.eval.confidence import (
    EXACT_DB,
    certificate_measures,
    confidence_measures,
    knows_which,
)


def told(confidence, found, psnr=None, clients=None, seed=0):
    n = len(confidence)
    psnr = torch.linspace(5, 25, n) if psnr is None else psnr
    clients = torch.arange(n) % 8 if clients is None else clients
    made = confidence_measures(confidence, found, psnr, psnr - 15, clients, seed=seed)
    return {measure.key: measure for measure in made}


def test_an_attack_that_knows_and_one_that_does_not():
    psnr = torch.linspace(5, 25, 80)
    found = (psnr > 15).float()
    sure = told(psnr / 25, found)
    assert sure["confidence_auc"].value == 1 and sure["confidence_rank"].value == pytest.approx(1)
    assert sure["confidence_surest"].value > sure["confidence_surest"].floor + 5
    assert sure["confidence_surest"].n == 20
    wrong = told(-psnr, found)
    assert wrong["confidence_auc"].value == 0 and wrong["confidence_surest"].over < -5
    blind = told(torch.rand(80, generator=torch.Generator().manual_seed(1)), found)
    low, high = blind["confidence_auc"].interval
    assert low < 0.5 < high and blind["confidence_auc"].n == 80
    assert blind["confidence_auc"].clients == 8


@pytest.mark.slow
def test_a_blind_attack_is_rarely_called_knowing():
    wrong = 0
    for seed in range(24):
        rng = torch.Generator().manual_seed(seed)
        found = (torch.rand(60, generator=rng) < 0.4).float()
        made = told(torch.rand(60, generator=rng), found, torch.rand(60, generator=rng), seed=seed)
        wrong += made["confidence_auc"].interval[0] > 0.5
    assert wrong <= 2  # 2.5 % nominal


def test_calibration_is_that_of_a_probability():
    rng = torch.Generator().manual_seed(0)
    truth = torch.rand(1000, generator=rng)
    found = (torch.rand(1000, generator=rng) < truth).float()
    psnr = torch.rand(1000, generator=rng)
    assert told(truth, found, psnr)["confidence_calibration"].value < 0.05
    assert told((truth + 3) / 4, found, psnr)["confidence_calibration"].value > 0.2


def test_silence_is_no_confidence():
    same = told(torch.ones(10), torch.ones(10))
    assert all(m.value is None and "as sure" in m.note for m in same.values())
    some = torch.full((10,), torch.nan)
    some[:6] = torch.arange(6.0)
    made = told(some, torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1, 1.0]))
    assert made["confidence_auc"].n == 6 and made["confidence_auc"].value == 1
    found = told(torch.arange(10.0), torch.ones(10))
    assert found["confidence_auc"].value is None and found["confidence_rank"].value is not None


def test_certificates_are_counted_and_checked():
    clients = torch.arange(6)
    given = torch.tensor([True, True, True, False, False, False])
    exact = torch.tensor([80.0, 70, 30, 90, 5, 5]) >= EXACT_DB
    share, right = certificate_measures(given, exact, clients)
    assert share.value == 0.5 and share.n == 6
    assert right.value == pytest.approx(2 / 3) and right.n == 3
    none = certificate_measures(~given & given, given, clients)
    assert none[0].value == 0 and none[1].value is None and "no answer" in none[1].note


def test_the_brier_skill_is_beside_the_share_and_coverage_beside_all():
    rng = torch.Generator().manual_seed(0)
    found = (torch.rand(200, generator=rng) < 0.3).float()
    psnr = 10 + 10 * found
    right = told(0.05 + 0.9 * found, found, psnr)
    assert right["confidence_brier"].value > 0.9 and right["confidence_brier"].interval[0] > 0.8
    share = told(found.mean() + 1e-3 * torch.rand(200, generator=rng), found, psnr)
    assert abs(share["confidence_brier"].value) < 0.02
    assert told(1 - found, found, psnr)["confidence_brier"].value < -1
    tenth, half = right["confidence_surest_tenth"], right["confidence_surest_half"]
    assert tenth.n == 20 and tenth.value == 5 and half.n == 100 and tenth.value > half.value
    assert half.value > half.floor == pytest.approx(float(psnr.mean()) - 15)
    assert "confidence_brier" not in told(found[:40], found[:40], psnr[:40])


def which(sure, found, clients):
    measures = confidence_measures(sure, found, found, found, clients, seed=0)
    return knows_which(sure, found, clients, measures)


@pytest.mark.slow
def test_that_the_attacker_knows_which_is_said_where_the_surest_are_found():
    clients = torch.arange(60) % 10
    found = torch.zeros(60)
    found[:15] = 1
    sure = torch.linspace(1, 0, 60)
    assert which(sure, found, clients) == "the attacker knows which: 15 of the 15 it is surest of"
    assert which(-sure, found, clients) == ""
    assert which(sure, torch.ones(60), clients) == ""  # all are, so there is nothing to know
    few = torch.zeros(60)
    few[:7] = 1
    assert which(sure, few, clients) == ""  # less than half of the surest quarter
    assert which(sure, found, torch.zeros(60, dtype=torch.int64)) == ""  # of one client
    assert which(sure[:11], found[:11], clients[:11]) == ""  # too few
    said = 0
    for seed in range(100):
        rng = torch.Generator().manual_seed(seed)
        hit = (torch.rand(60, generator=rng) < 0.6).float()
        said += which(torch.rand(60, generator=rng), hit, clients) != ""
    assert said <= 6  # 2.5 % nominal
