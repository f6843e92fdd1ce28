"""Planted bugs in private training are found, correct training is not called wrong."""

import dataclasses

import opacus.optimizers
import pytest

from fedre_privacy.auditing.claims import CONSISTENT, REFUTED, claim_of
from fedre_privacy.auditing.step_audit import audit_steps
from fedre_privacy.core.artifacts import ModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.defenses import dp_mf
from fedre_privacy.defenses.base import RECORD, FederationFacts
from fedre_privacy.defenses.dp_mf import DPMF
from fedre_privacy.defenses.dp_sgd import DPSGD
from fedre_privacy.defenses.gaussian import Gaussian

FULL = {"batch_size": 100}
"""Every record is in every batch: the curve is Gaussian."""


def facts(rounds=1, **more):
    given = {"epochs": 1, "batch_size": 20, **more}
    return FederationFacts(
        protocol="fedavg", kinds=(ModelState,), class_counts=((50, 50), (10, 20)),
        participations=(rounds, rounds), rounds=rounds, training_only=True, **given,
    )  # fmt: skip


def audited(noise=2.0, rounds=1, trials=400, seed=0, accountant="prv", **more):
    known = facts(rounds, **more)
    defense = DPSGD(clip=0.05, noise=noise, accountant=accountant)
    claim = claim_of([defense], known, [tuple(range(1, rounds + 1))] * 2)
    return audit_steps([defense], known, claim, trials=trials, seed=seed)


@pytest.mark.parametrize(
    ("rounds", "more"),
    [(1, FULL),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in (
         (5, {}), (4, FULL), (3, {"epochs": 2}), (4, {"local_steps": 2}),
         (5, {"accountant": "rdp"})))],
)  # fmt: skip
def test_correct_training_is_consistent_with_its_claim(rounds, more):
    found = audited(rounds=rounds, **more)
    assert found.verdict == CONSISTENT, (found.p, found.right)
    assert found.shown <= found.claim.epsilon <= found.ceiling + found.claim.epsilon
    assert found.trials >= 400


@pytest.mark.slow
def test_without_sampling_the_claim_is_a_gaussian_curve_and_with_it_the_accountants():
    assert audited(rounds=4, **FULL).claim.mu == pytest.approx(1.0)
    sampled = audited(noise=1.0, rounds=20, trials=50)
    assert sampled.claim.mu is None
    # 100 steps at rate 0.1 and noise 1 have a distance of 0.4388; the smaller client pays more
    known = dataclasses.replace(
        facts(20, batch_size=10, local_steps=5),
        class_counts=((50, 50),), participations=(20,),
    )  # fmt: skip
    claim = claim_of([DPSGD(clip=1.0, noise=1.0)], known, [tuple(range(1, 21))])
    assert 0.7194 < claim.curve.cap < 0.7210
    assert claim.epsilon == pytest.approx(7.06, abs=0.05)


def optimiser(monkeypatch, **factors):
    """Let training use other settings than those that the defence declares."""
    real = opacus.optimizers.DPOptimizer

    def other(sgd, **settings):
        return real(sgd, **settings | {key: settings[key] * f for key, f in factors.items()})

    monkeypatch.setattr(opacus.optimizers, "DPOptimizer", other)


def halved(monkeypatch):
    optimiser(monkeypatch, noise_multiplier=0.5)


def unclipped(monkeypatch):
    optimiser(monkeypatch, max_grad_norm=5, noise_multiplier=1 / 5)


def twice_as_sensitive(monkeypatch):
    optimiser(monkeypatch, max_grad_norm=2, noise_multiplier=1 / 2)


def steps_uncounted(monkeypatch):
    real = DPSGD.cost

    def once(self, facts):
        one = dataclasses.replace(facts, participations=(1,) * facts.clients)
        return real(self, one)

    monkeypatch.setattr(DPSGD, "cost", once)


PLANTED = [
    (halved, 4, FULL), (unclipped, 1, FULL), (twice_as_sensitive, 4, FULL),
    (steps_uncounted, 16, FULL), (halved, 10, {}),
    *(pytest.param(bug, 16, {}, marks=pytest.mark.slow) for bug in (unclipped, steps_uncounted)),
]  # fmt: skip


@pytest.mark.parametrize(("bug", "rounds", "more"), PLANTED)
def test_a_planted_bug_is_found(bug, rounds, more, monkeypatch, verdict_alone):
    bug(monkeypatch)
    found = audited(rounds=rounds, **more)
    assert found.verdict == REFUTED, (found.p, found.right, found.claim.curve.cap)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_audit():
    assert audited() == audited()
    assert audited(seed=1).right != audited().right


def test_a_claim_without_private_training_is_refused():
    noisy = Gaussian(clip=1.0, noise=1.0)
    known = facts()
    claim = claim_of([DPSGD(clip=1.0, noise=1.0)], known, [(1,), (1,)], RECORD)
    with pytest.raises(IncompatibleError, match="no defence says that it trains"):
        audit_steps([noisy], known, claim, trials=50)
    with pytest.raises(IncompatibleError, match="no claim for one record to audit"):
        claim_of([noisy], known, [(1,), (1,)], RECORD)


def correlated(rounds=1, trials=400, seed=0, noise=2.0, **more):
    known = facts(rounds, **more)
    defense = DPMF(clip=0.05, noise=noise)
    claim = claim_of([defense], known, [tuple(range(1, rounds + 1))] * 2)
    return audit_steps([defense], known, claim, trials=trials, seed=seed)


@pytest.mark.parametrize(("rounds", "more"), [(2, {}), (1, {"epochs": 3}), (2, {"local_steps": 4})])
def test_correlated_noise_is_consistent_with_its_claim(rounds, more):
    found = correlated(rounds, **more)
    assert found.verdict == CONSISTENT, (found.p, found.right)
    assert 0.3 * found.claim.epsilon < found.shown <= found.claim.epsilon
    assert "after every step" in found.attacker


def forgotten(monkeypatch):
    """The sensitivity of independent noise."""
    monkeypatch.setattr(dp_mf, "sensitivity", lambda coefficients, waits, steps: 1.0)


def more_often(monkeypatch):
    """Epochs that are not counted."""
    real = dp_mf.sensitivity
    monkeypatch.setattr(dp_mf, "sensitivity", lambda c, waits, steps: real(c, waits, waits))


def weaker(monkeypatch):
    real = dp_mf.train_privately
    monkeypatch.setattr(
        dp_mf, "train_privately", lambda *a, **k: real(*a, **{**k, "noise": k["noise"] / 2})
    )


def longer(monkeypatch):
    real = dp_mf.train_privately
    monkeypatch.setattr(
        dp_mf,
        "train_privately",
        lambda *a, **k: real(*a, **{**k, "clip": k["clip"] * 2, "noise": k["noise"] / 2}),
    )


@pytest.mark.parametrize("bug", [forgotten, more_often, weaker, longer])
def test_a_planted_bug_in_correlated_noise_is_found(bug, monkeypatch, verdict_alone):
    bug(monkeypatch)
    found = correlated(2, epochs=3)
    assert found.verdict == REFUTED, (found.p, found.right, found.claim.curve.cap)
