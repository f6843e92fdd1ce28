"""The verdict names who leaks, tests no group that is too small, and keeps its level."""

from __future__ import annotations

import numpy as np
import pytest

from fedre_privacy.eval.verdict import (
    INCONCLUSIVE,
    LEAKS,
    NOT_BETTER,
    TOO_FEW,
    Part,
    holm,
    told,
    verdicts,
)


def part(name="", targets=24, clients=10, gap=-1.0, highest=0.2, tests=(0.9, 0.9), found=1.0):
    return Part(name, targets, clients, gap, highest, tests, found, targets)


def say(whole, *groups, noun="prototype"):
    found = verdicts([whole, *groups])
    return ": ".join(told(whole, groups, found, noun=noun, gallery=100))


def test_the_group_that_leaks_is_named_first():
    text = say(
        part(tests=(0.9, 0.2), found=7),
        part("1", 6, 5, 5.9, 9.0, (1e-4, 1e-6), 6),
        part("2-30", 9, 8, -5.0, -2.0),
        part(">30", 9, 9, -4.0, -2.0, found=0),
    )
    assert text == (
        "leaks: the 6 prototypes of one image (+5.9 dB, 6 of 6 found among 100); not better than "
        "the floor for the other 18 (-4.5 dB, 1 of 18 found)"
    )


def test_a_group_of_four_clients_is_too_few_to_say_however_clear_it_looks():
    groups = (
        part("1", 6, 4, 5.3, 8.0, (1e-9, 1e-9), 6),
        part("2-30", 9, 8, -5.1, -2.0, found=0),
        part(">30", 9, 9, -3.6, -2.0, found=1),
    )
    whole = part(gap=-1.9, tests=(0.9, 1e-5), found=7)
    assert verdicts([whole, *groups]) == [LEAKS, TOO_FEW, NOT_BETTER, NOT_BETTER]
    assert say(whole, *groups) == (
        "leaks: the 24 prototypes together (-1.9 dB, 7 of 24 found among 100); too few to say for "
        "the 6 of one image (+5.3 dB, 6 of 6 found, of 4 clients); not better than the floor for "
        "the other 18 (-4.3 dB, 1 of 18 found)"
    )
    # and it cannot make the whole leak by itself
    assert verdicts([part(), *groups])[0] == NOT_BETTER


@pytest.mark.parametrize("targets, clients", [(5, 5), (24, 4), (3, 3)])
def test_too_few_targets_or_clients_are_inconclusive(targets, clients):
    few = part(targets=targets, clients=clients, gap=20.0, tests=(1e-12, 1e-12))
    verdict, because = told(few, [], verdicts([few]), noun="image", gallery=100)
    assert (
        verdict == INCONCLUSIVE and f"{targets} images of {clients} clients are too few" in because
    )
    assert "at least 6 targets of 5 clients" in because


def test_one_group_is_said_in_one_clause():
    assert say(part(tests=(1e-5, 0.5), gap=6.0)) == (
        "leaks: the 24 prototypes (+6.0 dB, 1 of 24 found among 100)"
    )
    assert say(part(), part("1")) == (
        "not better than the floor: the 24 prototypes (-1.0 dB, 1 of 24 found among 100), so a "
        "weak attack or a strong protocol"
    )
    assert say(part(highest=3.0)).startswith("inconclusive: the 24 prototypes (")


def test_words_fit_every_mixture_of_verdicts():
    both = (part("1", 8, 8, 6.0, 9.0, (1e-5,), 8), part("2-30", 16, 9, 3.0, 5.0, (1e-5,), 2))
    assert say(part(tests=(1e-5,), gap=4.0), *both) == (
        "leaks: the 24 prototypes (+4.0 dB, 1 of 24 found among 100)"
    )
    one = say(
        part(),
        part("1", 1, 1, 4.0, None, (), 1),
        part("2-30", 22, 9, -2.0, 0.0),
        part(">30", 1, 1, 0.0, None, (), 0.5),
    )
    assert one == (
        "not better than the floor: the 24 prototypes (-1.0 dB, 1 of 24 found among 100), so a "
        "weak attack or a strong protocol; too few to say for the one of one image (+4.0 dB, 1 of "
        "1 found, of 1 client) and the one of more than 30 images (+0.0 dB, 0.5 of 1 found, of 1 "
        "client)"
    )
    two = say(
        part(),
        part("1", 8, 8, 6.0, 9.0, (1e-5,), 8),
        part("2-30", 8, 8, 0.3, 2.0),
        part(">30", 8, 4, 0.0, 0.1),
    )
    assert two == (
        "leaks: the 8 prototypes of one image (+6.0 dB, 8 of 8 found among 100); too few to say "
        "for the 8 of more than 30 images (+0.0 dB, 1 of 8 found, of 4 clients); inconclusive for "
        "the other 8 (+0.3 dB, 1 of 8 found)"
    )


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
        leaks += LEAKS in verdicts(parts)
    assert leaks / len(p) <= 0.03
