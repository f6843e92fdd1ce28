"""Noise on uploads for one record is audited with private training; planted bugs are found."""

import pytest

from fedre_privacy.auditing.claims import CONSISTENT, REFUTED
from fedre_privacy.auditing.recorded_run import (
    audit_claim,
    numbered_images,
    plan_audit,
    sends_for_a_record,
)
from fedre_privacy.defenses import apply, gaussian, noise
from fedre_privacy.runs.resolution import resolve_training

GAUSSIAN = "gaussian:unit=record,clip=1,noise=2"
LAPLACE = "laplace:unit=record,clip=1,epsilon=1"
SENDING = ("fedre", "fedgh", "fedproto", "fedtgp", "fpl", "fedallrep")


def planned(protocol="fedgh", noisy=GAUSSIAN, rounds=4, classes=None):
    problems = []
    settings = resolve_training(
        {
            "protocol": {"name": protocol},
            "data": {"name": "digits"},
            "train": {"clients": 10, "rounds": rounds},
            "partition": {"name": "pra"}
            if classes is None
            else {"name": "pat", "classes": classes},
            "defense": ["dp-sgd:noise=20,clip=1", noisy] if noisy else "dp-sgd:noise=2,clip=1",
        },
        {},
        problems,
    )
    assert not problems
    return plan_audit(settings)


def audited(*given, seed=0, **more):
    return audit_claim(planned(*given, **more), (), trials=400, seed=seed)


def test_images_hold_their_number_and_pass_as_images():
    digits = (numbered_images(70_000).float().div(255) * 255).round().long().flatten(1)
    assert digits[65_539].tolist() == [1, 0, 3] and digits[300].tolist() == [0, 1, 44]


@pytest.mark.parametrize("protocol", SENDING)
def test_correct_noise_is_consistent_and_more_is_seen_than_in_training_alone(protocol):
    found = audited(protocol)
    assert found.verdict == CONSISTENT, (found.p, found.right)
    assert "and the uploads of 4 rounds" in found.game and "what is uploaded" in found.attacker
    # four uploads at multiplier 2 have a distance of 1: at most 69.1 % right guesses, and less
    # for a sample whose weight in a mixture is not the largest
    assert (0.53 if protocol == "fedre" else 0.62) < found.right / found.trials < 0.75
    assert found.shown <= found.promised


@pytest.mark.parametrize("protocol", ("fedre", "fedgh"))
def test_laplace_noise_is_consistent(protocol):
    found = audited(protocol, LAPLACE)
    assert found.verdict == CONSISTENT
    assert found.right / found.trials > 0.53


def test_without_noise_for_a_record_training_alone_is_audited(verdict_alone):
    plan = planned("fedavg", None)
    assert not sends_for_a_record(plan.defenses, plan.facts)
    assert "uploads" not in audit_claim(plan, (), trials=50).game


def halved(monkeypatch):
    real = noise.noisy
    monkeypatch.setattr(gaussian, "noisy", lambda a, scales, draw: real(a, scales / 2, draw))


def wrong_sensitivity(monkeypatch):
    real = noise.record_weights
    monkeypatch.setattr(noise, "record_weights", lambda *given: real(*given) / 2)


def unbounded(monkeypatch):
    monkeypatch.setattr(gaussian.Gaussian, "represent", lambda self: None)


def one_seed_for_all_rounds(monkeypatch):
    real = apply.stream
    monkeypatch.setattr(
        apply, "stream", lambda seed, what, **where: real(seed, what, **{**where, "round": 0})
    )


@pytest.mark.parametrize("protocol", ("fedre", "fedgh", "fedallrep"))
@pytest.mark.parametrize("bug", (halved, wrong_sensitivity, unbounded, one_seed_for_all_rounds))
def test_a_planted_bug_is_found(bug, protocol, monkeypatch, verdict_alone):
    bug(monkeypatch)
    # of one class each, so that every sample has the largest weight in its client's mixture
    found = audited(protocol, classes=1)
    assert found.verdict == REFUTED, (found.p, found.right, found.cap)


def test_rounds_that_are_not_counted_are_found(monkeypatch, verdict_alone):
    real = gaussian.uses
    monkeypatch.setattr(gaussian, "uses", lambda kinds, rounds: real(kinds, min(rounds, 1)))
    assert audited("fedgh", rounds=16).verdict == REFUTED


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated(verdict_alone):
    plan = planned("fedgh")
    refuted = sum(
        audit_claim(plan, (), trials=100, seed=seed).verdict == REFUTED for seed in range(200)
    )
    assert refuted <= 2  # one in a thousand is stated


@pytest.mark.slow
def test_the_bound_is_above_the_truth_as_rarely_as_stated():
    plan = planned("fedgh")
    above = 0
    for seed in range(100):
        found = audit_claim(plan, (), trials=100, seed=seed)
        above += found.shown > found.promised
    assert above <= 10


def test_the_same_seed_gives_the_same_audit(verdict_alone):
    assert audited() == audited()
