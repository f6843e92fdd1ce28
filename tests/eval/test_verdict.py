"""The verdict names who leaks, tests no group that is too small, and keeps its level."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedre_privacy.eval.intervals import at_least, cluster_means, ends, shares
from fedre_privacy.eval.measures import Measure, Verdict
from fedre_privacy.eval.summary import HIT
from fedre_privacy.eval.verdict import (
    INCONCLUSIVE,
    LEAKS,
    MARGIN_DB,
    MARGIN_SHARE,
    NO_EVIDENCE,
    TOO_FEW,
    VerdictGroup,
    holm,
    leak_verdict,
    still,
    verdict_lines,
    verdicts,
    weakened_verdict,
)


def part(
    name="",
    targets=24,
    clients=10,
    gap=-1.0,
    highest=0.2,
    tests=(0.9, 0.9),
    found=1.0,
    most=0.05,
    chance=None,
):
    psnr = Measure(
        key="psnr", title="PSNR", unit="dB", digits=2, value=10 + gap, over=gap,
        over_interval=None if highest is None else (gap - 1, highest), p=tests[0],
        margin=MARGIN_DB, n=targets, targets=targets, clients=clients,
    )  # fmt: skip
    hit = replace(
        HIT, value=found / targets, floor=0.02, over_interval=(-0.02, most), p=tests[1],
        margin=MARGIN_SHARE, n=targets, targets=targets, clients=clients,
    )  # fmt: skip
    return VerdictGroup(name, psnr, hit, found, chance)


def words(*parts):
    return [ruling.word for ruling in verdicts(parts)]


def say(whole, *groups, noun="prototype", unit="client"):
    found = verdicts([whole, *groups])
    return verdict_lines(whole, groups, found, noun=noun, gallery=100, unit=unit)


def test_the_group_that_leaks_comes_first_and_lines_are_of_disjoint_targets():
    word, lines = say(
        part(tests=(0.9, 0.2), found=7),
        part("1", 6, 5, 5.9, 9.0, (1e-4, 1e-6), 6, chance=2e-9),
        part("2-30", 9, 8, -5.0, -2.0),
        part(">30", 9, 9, -4.0, -2.0, found=0, most=0.08),
    )
    assert word == LEAKS
    assert lines == (
        (LEAKS, "the 6 prototypes of one image: 6 of 6 found among 100 (guess 2.0 %), pictures 5.9 "
                "dB over the floor; shown for clients like these and for these images (p = 2e-09 "
                "by guessing)"),
        (NO_EVIDENCE, "the other 18: 1 of 18 found among 100 (guess 2.0 %), pictures 4.5 dB under "
                      "the floor; could still be up to +8 points found"),
    )  # fmt: skip


def test_nine_of_nine_images_of_four_clients_leak_and_little_is_said_of_others():
    groups = (
        part("1", 9, 4, 5.3, 8.0, (1e-9, 1e-9), 9, chance=1e-15),
        part("2-30", 9, 8, -5.1, -2.0, found=0),
        part(">30", 9, 9, -3.6, -2.0, found=1),
    )
    word, lines = say(part(targets=27, gap=-1.9, found=10), *groups)
    assert word == LEAKS and [said for said, _ in lines] == [LEAKS, NO_EVIDENCE]
    assert lines[0][1] == (
        "the 9 prototypes of one image: 9 of 9 found among 100 (guess 2.0 %), pictures 5.3 dB over "
        "the floor; shown for these images (p = 1e-15 by guessing) of 4 clients, little is said of "
        "other clients"
    )
    alone = part("1", 9, 4, 5.3, 8.0, (1e-9, 1e-9), 9, chance=1e-15)
    assert words(alone) == [LEAKS]


def test_a_group_of_four_clients_whose_images_were_not_sought_is_too_few_to_say():
    groups = (part("1", 6, 4, 5.3, 8.0, (1e-9, 1e-9), 1), part("2-30", 9, 8, -5.1, -2.0))
    whole = part(gap=-1.9, tests=(0.9, 1e-5), found=7)
    assert words(whole, *groups) == [LEAKS, TOO_FEW, NO_EVIDENCE]
    word, lines = say(whole, *groups)
    assert word == LEAKS and len(lines) == 1
    assert lines[0][1].startswith("the 24 prototypes together: 7 of 24 found")
    # and it cannot make the whole leak by itself
    word, ((said, text),) = say(part(), *groups)
    assert word == said == NO_EVIDENCE and text.endswith(
        "too few to say of those of one image alone"
    )


@pytest.mark.parametrize("targets, clients", [(5, 5), (24, 4), (3, 3)])
def test_too_few_targets_or_clients_are_inconclusive(targets, clients):
    word, ((said, text),) = say(
        part(targets=targets, clients=clients, gap=20.0, tests=(1e-12, 1e-12)), noun="image"
    )
    assert word == said == INCONCLUSIVE
    assert f"{targets} images of {clients} clients are too few" in text
    assert "at least 6 targets of 5 clients" in text


def test_no_evidence_needs_a_bound_on_pictures_and_on_finding():
    assert words(part()) == [NO_EVIDENCE]
    word, ((said, text),) = say(part(found=6, most=0.467))
    assert word == said == INCONCLUSIVE
    assert text.endswith("could still be up to +0.20 dB PSNR and +47 points found")
    assert words(part(highest=0.6)) == [INCONCLUSIVE] == words(part(highest=None))
    unasked = part()
    unasked = replace(unasked, hit=replace(unasked.hit, value=None, over_interval=None, n=0))
    word, ((_, text),) = say(unasked)
    assert word == INCONCLUSIVE and "found has no bound" in text


def test_groups_of_one_verdict_are_one_line():
    both = (part("1", 8, 8, 6.0, 9.0, (1e-5, 1), 8), part("2-30", 16, 9, 3.0, 5.0, (1e-5, 1), 2))
    word, ((said, text),) = say(part(tests=(1e-5, 1), gap=4.0), *both)
    assert word == said == LEAKS and text.startswith("the 24 prototypes: 1 of 24 found among 100")
    _, lines = say(
        part(),
        part("1", 8, 8, 6.0, 9.0, (1e-5, 1), 8),
        part("2-30", 8, 8, 0.3, 2.0, most=0.3),
        part(">30", 8, 4, 0.0, 0.1),
    )
    assert [said for said, _ in lines] == [LEAKS, INCONCLUSIVE, INCONCLUSIVE]
    assert lines[1][1].startswith("the 8 of 2 to 30 images: ") and "+30 points" in lines[1][1]
    assert lines[2][1].startswith("the 8 of more than 30") and lines[2][1].endswith(TOO_FEW)


def test_a_weakened_attack_is_no_evidence():
    said = Verdict(NO_EVIDENCE, "so", "rule", findings=((NO_EVIDENCE, "so"),))
    assert weakened_verdict(said, ()) is said
    found = weakened_verdict(said, ("no images", "old models lost"))
    assert found.word == INCONCLUSIVE and found.lines == ((INCONCLUSIVE, "so"),)
    assert str(found) == "inconclusive: so; weakened: no images; old models lost"
    assert weakened_verdict(Verdict(LEAKS, "so", "rule"), ("no images",)).word == LEAKS


def test_what_is_open_is_said_in_the_measures_own_direction():
    error = Measure(key="l1", title="error", higher_is_more_leakage=False, margin=0.2,
                    over_interval=(-0.3, 0.12))  # fmt: skip
    assert still([error]) == "could still be up to -0.12 error" and error.bounded
    assert leak_verdict(False, [error], clients=4) == INCONCLUSIVE
    assert leak_verdict(False, []) == INCONCLUSIVE
    under = replace(error, over_interval=(-0.3, -0.1))
    assert still([under]) == "shown to be under the floor"


def test_the_number_found_is_tested_exactly():
    """Against the sums over all outcomes of unlike trials."""
    chances = torch.tensor([0.1, 0.5, 0.02, 0.3])
    exact = [0.0] * 5
    for outcome in itertools.product((0, 1), repeat=4):
        exact[sum(outcome)] += math.prod(
            p if hit else 1 - p for p, hit in zip(chances.tolist(), outcome, strict=True)
        )
    for count in range(5):
        assert at_least(count, chances) == pytest.approx(sum(exact[count:]), rel=1e-9)
    assert at_least(2.5, chances) == at_least(2, chances)  # half a tie is no image
    assert at_least(9, torch.full((9,), 0.01)) == pytest.approx(1e-18)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [3, 0]
    assert holm([0.2, 0.3]) == [] == holm([])


def test_many_tests_of_nothing_seldom_leak():
    """Eight independent tests at 2.5 % each would leak in 18 % of cases."""
    p = np.random.default_rng(0).random((4000, 4, 2))
    leaks = 0
    for draw in p.tolist():
        parts = [
            part(n, tests=tuple(t)) for n, t in zip(("", "1", "2-30", ">30"), draw, strict=True)
        ]
        leaks += LEAKS in words(*parts)
    assert leaks / len(p) <= 0.03


SIZES = {"even": (4,) * 10, "one has half": (27, *(3,) * 9), "many": (2,) * 60}
"""Targets of each client."""


def played(sizes, gain, rate, seed, worlds=1500):
    """Words over simulated worlds: clients differ in PSNR as much as the targets of one do."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    clients = torch.from_numpy(owner)
    n = len(owner)
    guess = torch.full((n,), 0.02, dtype=torch.float64)
    found = dict.fromkeys((LEAKS, NO_EVIDENCE, INCONCLUSIVE), 0)
    for _ in range(worlds):
        gaps = gain + 0.7 * (rng.standard_normal(len(sizes))[owner] + rng.standard_normal(n))
        hits = torch.from_numpy((rng.random(n) < rate).astype(float))
        over = cluster_means(torch.from_numpy(gaps)[:, None], clients)
        share = shares(hits[:, None], clients)
        low, high = (float(end) - 0.02 for end in share.interval())
        psnr = Measure(
            key="psnr", title="PSNR", over=float(gaps.mean()), over_interval=ends(over),
            p=float(over.p_above()), margin=MARGIN_DB, n=n, targets=n, clients=len(sizes),
        )  # fmt: skip
        hit = replace(
            HIT, floor=0.02, over_interval=(low, high), p=float(share.p_above(guess[:1])),
            margin=MARGIN_SHARE, n=n, targets=n, clients=len(sizes),
        )  # fmt: skip
        total = float(hits.sum())
        (word,) = words(VerdictGroup("", psnr, hit, total, at_least(total, guess)))
        found[word] += 1
    return {word: count / worlds for word, count in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", list(SIZES))
def test_verdicts_are_seldom_wrong(sizes):
    """No leak is called one, and a leak of the margin is not called none, in 5 % at most."""
    assert played(SIZES[sizes], 0.0, 0.02, seed=1)[LEAKS] <= 0.05
    assert played(SIZES[sizes], MARGIN_DB, 0.02, seed=2)[NO_EVIDENCE] <= 0.05
    assert played(SIZES[sizes], -2.0, 0.02 + MARGIN_SHARE, seed=3)[NO_EVIDENCE] <= 0.05


@pytest.mark.slow
def test_verdicts_have_power():
    """Where one client has half of the targets, too; sixty clients can show that it is little."""
    assert played(SIZES["one has half"], 1.0, 0.02, seed=4, worlds=300)[LEAKS] >= 0.6
    assert played(SIZES["many"], -2.0, 0.02, seed=5, worlds=300)[NO_EVIDENCE] >= 0.9
