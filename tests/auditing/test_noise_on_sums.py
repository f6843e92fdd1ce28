"""Noise on the sums behind class statistics is audited; a wrong sensitivity is found."""

import math

import pytest
from scipy.stats import norm

from fedre_privacy.auditing.claims import CONSISTENT, REFUTED
from fedre_privacy.auditing.recorded_run import audit_claim, plan_audit
from fedre_privacy.defenses import statistics_noise
from fedre_privacy.runs.resolution import resolve_training

FULL = {"name": "fedpft", "precision": "float32"}
PROTOCOLS = {
    "full": FULL,
    "diagonal": {**FULL, "covariance": "diagonal"},
    "spherical": {**FULL, "covariance": "spherical"},
    "moment": {"name": "fedcgs"},
}


def planned(form, noise=1.0, rounds=1):
    problems = []
    settings = resolve_training(
        {
            "protocol": PROTOCOLS[form],
            "data": {"name": "digits"},
            "train": {"clients": 10, "rounds": rounds},
            "partition": {"name": "pat", "classes": 2},
            "defense": [f"statistics-noise:clip=3,noise={noise}"],
        },
        {},
        problems,
    )
    assert not problems
    return plan_audit(settings)


def audited(form, trials=400, **more):
    return audit_claim(planned(form, **more), (), trials=trials)


@pytest.mark.parametrize("form", PROTOCOLS)
def test_correct_noise_is_consistent_and_most_of_it_is_seen(form):
    found = audited(form)
    assert found.verdict == CONSISTENT, (found.p, found.right, found.cap)
    assert found.level == "uploads" and "the uploads of 1 rounds" in found.game
    assert "the model" not in found.attacker and "what is uploaded" in found.attacker
    # |(A / S, B / S^2)| moves by 3 / root 2 in full, and the guess is right with this chance
    moved = {"full": 4.5, "moment": 4.5, "diagonal": 4.125, "spherical": 3.0}[form]
    expected = norm.cdf(math.sqrt(moved / 4.5) / 2)
    share = found.right / found.trials
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / found.trials)
    assert found.cap == pytest.approx(norm.cdf(0.5)) and share > 0.6


def too_small(monkeypatch):
    monkeypatch.setattr(statistics_noise, "SENSITIVITY", math.sqrt(4.5) / 2)


def of_sums_alone(monkeypatch):
    """A third of the noise on sums of outer products."""
    real = statistics_noise.noise_of

    def forgotten(z, bound, dim):
        step = real(z, bound, dim)
        return type(step)(step.count, step.sums, step.outer / 3)

    monkeypatch.setattr(statistics_noise, "noise_of", forgotten)


def unbounded(monkeypatch):
    monkeypatch.setattr(
        statistics_noise.StatisticsNoise, "represent", lambda self: lambda reps: reps
    )


@pytest.mark.parametrize("bug", [too_small, of_sums_alone, unbounded])
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug(monkeypatch)
    found = audited("full")
    assert found.verdict == REFUTED, (found.p, found.right, found.cap)


def test_uses_that_are_not_counted_are_found(monkeypatch):
    monkeypatch.setattr(statistics_noise, "uses", lambda kinds, rounds: 1)
    assert audited("diagonal", rounds=8).verdict == REFUTED


def test_sums_of_outer_products_without_noise_are_found(monkeypatch):
    real = statistics_noise._noisy

    def bare(given, step, rng):
        return real(given, type(step)(step.count, step.sums, 0.0), rng)

    monkeypatch.setattr(statistics_noise, "_noisy", bare)
    found = audited("full", noise=0.5, trials=1600)
    assert found.verdict == REFUTED, (found.p, found.right, found.cap)
