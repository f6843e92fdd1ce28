"""Planted bugs in the noise are found, correct mechanisms are not called wrong."""

import math

import pytest
import torch

from fedre_privacy.auditing.claims import CONSISTENT, REFUTED, claim_of
from fedre_privacy.auditing.mechanism import audit_mechanism
from fedre_privacy.auditing.one_training import one_training
from fedre_privacy.core.artifacts import EntangledRep, HeadState, ModelState, Prototypes
from fedre_privacy.core.config import build_plugin
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.core.rng import stream
from fedre_privacy.defenses import apply, gaussian
from fedre_privacy.defenses.base import FederationFacts, defenses

WIDTH = 64


def made(name, **settings):
    problems: list[str] = []
    defense = build_plugin(defenses, {"name": name, **settings}, at="defense", problems=problems)
    assert not problems
    return defense


def facts(kind=EntangledRep, rounds=1, clients=2):
    return FederationFacts(
        protocol="fedre", kinds=(kind,), class_counts=((5, 5),) * clients,
        participations=(rounds,) * clients, rounds=rounds,
    )  # fmt: skip


FORMS = {
    EntangledRep: EntangledRep(torch.zeros(WIDTH), torch.tensor([0.5, 0.5])),
    Prototypes: Prototypes(torch.zeros(9, WIDTH), torch.arange(9)),
    HeadState: HeadState({"weight": torch.zeros(4, 16), "bias": torch.zeros(4)}),
    ModelState: ModelState({"w": torch.zeros(20, 10), "steps": torch.zeros((), dtype=torch.int64)}),
}


def audited(defense, kind=EntangledRep, rounds=1, trials=400, after=(), **more):
    told, known = [defense, *after], facts(kind, rounds)
    claim = claim_of(told, known, [tuple(range(1, rounds + 1))] * 2)
    return audit_mechanism(told, known, claim, [FORMS[kind]], trials=trials, **more)


CORRECT = [
    ("gaussian", {"clip": 1.0, "noise": 2.0}, EntangledRep, 1),
    ("gaussian", {"clip": 3.0, "noise": 2.0}, Prototypes, 1),
    ("gaussian", {"clip": 1.0, "noise": 2.0}, EntangledRep, 4),
    ("gaussian", {"clip": 0.5, "epsilon": 8.0}, HeadState, 3),
    ("gaussian", {"clip": 0.5, "epsilon": 8.0}, ModelState, 2),
    ("laplace", {"clip": 1.0, "epsilon": 2.0}, EntangledRep, 1),
]


@pytest.mark.parametrize(("name", "settings", "kind", "rounds"), CORRECT)
def test_a_correct_mechanism_is_consistent_with_its_claim(name, settings, kind, rounds):
    found = audited(made(name, **settings), kind, rounds, trials=100)
    assert found.verdict == CONSISTENT, (found.p, found.right, found.repeated)
    assert found.shown <= found.claim.epsilon <= found.ceiling or found.shown <= found.ceiling


@pytest.mark.slow
def test_the_audit_is_as_sharp_as_its_trials_allow():
    """Every bit of the allowance is used: opposite canaries at the bound are the worst case."""
    found = audited(made("gaussian", clip=1.0, noise=1.0), trials=2000)
    assert found.claim.mu == 1.0
    assert found.right / found.trials == pytest.approx(found.claim.curve.cap, abs=0.04)
    assert found.shown > 0.75 * gdp_epsilon(1.0, 1e-5)
    assert found.claim.epsilon == pytest.approx(4.3772, abs=1e-3)


def halved(monkeypatch):
    real = gaussian.noisy
    monkeypatch.setattr(gaussian, "noisy", lambda a, scales, draw: real(a, scales / 2, draw))


def unclipped(monkeypatch):
    monkeypatch.setattr(gaussian, "clip_to_norm", lambda artifact, norm, sending: artifact)


def rows_forgotten(monkeypatch):
    real = gaussian.sensitivities
    monkeypatch.setattr(gaussian, "sensitivities", lambda a, *rest: real(a, *rest) / math.sqrt(9))


def rounds_uncounted(monkeypatch):
    monkeypatch.setattr(gaussian, "uses", lambda kinds, rounds: 1)


def one_stream(monkeypatch):
    def fixed(seed, purpose, *, client=-1, round=-1, index=-1):
        return stream(seed, purpose, client=client, round=0, index=index)

    monkeypatch.setattr(apply, "stream", fixed)


def public_stream(monkeypatch):
    def fixed(seed, purpose, *, client=-1, round=-1, index=-1):
        return stream(0, purpose, client=client, round=round, index=index)

    monkeypatch.setattr(apply, "stream", fixed)


PLANTED = [
    (halved, EntangledRep, 1, 800),
    (unclipped, EntangledRep, 1, 200),
    (rows_forgotten, Prototypes, 1, 300),
    (rounds_uncounted, EntangledRep, 10, 200),
    (one_stream, EntangledRep, 4, 100),
    (public_stream, EntangledRep, 2, 100),
]


@pytest.mark.parametrize(
    ("bug", "kind", "rounds", "trials"), PLANTED, ids=[bug.__name__ for bug, *_ in PLANTED]
)
def test_a_planted_bug_is_found(bug, kind, rounds, trials, monkeypatch):
    bug(monkeypatch)
    found = audited(made("gaussian", clip=1.0, noise=2.0), kind, rounds, trials)
    assert found.verdict == REFUTED, (found.p, found.right)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_after_the_noise_is_not_taken_for_noise_drawn_twice(bits):
    """Of few levels, draws are equal by chance."""
    found = audited(
        made("gaussian", clip=1.0, noise=2.0), rounds=2, trials=150,
        after=[made("quantise", bits=bits)],
    )  # fmt: skip
    assert found.verdict == CONSISTENT, (found.p, found.repeated)


def test_one_draw_for_all_rounds_is_found_under_rounding_too(monkeypatch):
    one_stream(monkeypatch)
    after = [made("quantise", bits=8)]
    found = audited(made("gaussian", clip=1.0, noise=2.0), rounds=4, trials=100, after=after)
    assert found.verdict == REFUTED and found.right == found.trials, found.right


@pytest.mark.slow
def test_false_alarms_stay_within_the_stated_chance():
    """Twenty correct audits: at a level of one in a thousand none should be called refuted."""
    defense = made("gaussian", clip=1.0, noise=2.0)
    found = [audited(defense, trials=60, seed=seed) for seed in range(20)]
    assert [one.verdict for one in found] == [CONSISTENT] * 20
    assert len({one.right for one in found}) > 1


def test_the_same_seed_gives_the_same_audit():
    defense = made("gaussian", clip=1.0, noise=2.0)
    assert audited(defense, trials=60) == audited(defense, trials=60)


def test_what_has_no_claim_is_refused():
    for defense in (
        [],
        [made("clip", norm=1.0)],
        [made("gaussian", clip=1.0, noise=1.0, unit="record")],
    ):
        with pytest.raises(IncompatibleError, match="no claim to audit"):
            claim_of(defense, facts(), [(1,), (1,)])


@pytest.mark.parametrize(
    ("more", "said"),
    [({"trials": 20}, "20 trials are too few"), ({"alpha": 0.0}, "alpha, .* is 0; it must lie")],
)
def test_bad_settings_of_an_audit_are_refused(more, said):
    with pytest.raises(ConfigError, match=said):
        audited(made("gaussian", clip=1.0, noise=1.0), **more)


def test_scores_show_more_of_few_clients_than_guesses():
    """Of one training's clients: mean over audits, as single ones are chance."""
    defense = made("gaussian", clip=1.0, epsilon=8.0)
    found = [audited(defense, trials=50, seed=seed) for seed in range(12)]
    guesses = sum(one.shown for one in found) / 12
    scores = sum(one.beside[0].epsilon for one in found) / 12
    assert guesses + 0.5 < scores < found[0].claim.epsilon
    few = one_training(found[0].claim, 50, 0.05)
    assert few.guesses == pytest.approx(guesses, abs=1) and few.scores == pytest.approx(
        scores, abs=1
    )


def test_scores_of_a_mechanism_without_a_gaussian_curve_have_no_bound():
    assert audited(made("laplace", clip=1.0, epsilon=2.0), trials=50).beside == ()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("gaussian", {"epsilon": 8.0}), ("gaussian", {"epsilon": 1.0}), ("laplace", {"epsilon": 2.0})],
)
def test_so_many_clients_of_one_training_are_enough(name, settings):
    defense = made(name, clip=1.0, **settings)
    claim = claim_of([defense], facts(), [(1,), (1,)])
    few = one_training(claim, 5, 0.05)
    enough = one_training(claim, few.enough_guesses, 0.05)
    assert few.guesses < 0.5 * claim.epsilon <= enough.guesses
    if name == "gaussian":
        short = one_training(claim, int(few.enough_guesses * 0.95), 0.05)
        assert short.guesses < 0.5 * claim.epsilon
        assert few.enough_scores < few.enough_guesses
        assert one_training(claim, few.enough_scores, 0.05).scores >= 0.5 * claim.epsilon
    assert f"{few.enough_guesses} by guesses" in few.says() and "5 clients" in few.says()
