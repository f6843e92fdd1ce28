"""What is promised, to whom, and what is not: no epsilon for what is not covered."""

import dataclasses
import json
import math

import pytest

from fedre_privacy.core.artifacts import (
    ClassLogits,
    ClassStatistics,
    Counts,
    LowRankChange,
    ModelState,
    Prototypes,
    RepStatistic,
)
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.defenses.accounting import epsilon_of
from fedre_privacy.defenses.base import Defense, Release, defenses
from fedre_privacy.defenses.statement import check_all, record, state


def make(name, **settings):
    return defenses.get(name)(**settings)


GAUSSIAN = make("gaussian", clip=1.0, noise=10.0)
FOR_RECORD = make("gaussian", clip=1.0, noise=10.0, unit="record")
DP = make("dp-sgd", clip=1.0, noise=2.0)
FEDAVG = {"protocol": "fedavg", "kinds": (ModelState, Counts)}


def test_noise_on_everything_hides_a_client(facts):
    (found,) = state([GAUSSIAN], facts()).guarantees
    assert (found.unit, found.delta, found.covers) == ("client", 1e-5, ("EntangledRep",))
    assert f"{found.epsilon:.2f}" == "4.38" and found.by_client == (found.epsilon,) * 10


def test_each_client_spends_by_the_rounds_in_which_it_takes_part(facts):
    (found,) = state([GAUSSIAN], facts(participations=(100, 1, 0) + (50,) * 7)).guarantees
    spent = found.by_client
    assert spent[0] == found.epsilon > spent[3] > spent[1] > spent[2] == 0


def test_every_artifact_of_a_round_is_counted_and_one_sent_once_is_counted_once(facts):
    kinds = (ModelState, Prototypes, Counts)
    (two,) = state([GAUSSIAN], facts(kinds=kinds)).guarantees
    assert two.epsilon == pytest.approx(epsilon_of((Release(10, 1.0, 200),), 1e-5))
    (once,) = state([GAUSSIAN], facts(kinds=(ModelState, RepStatistic))).guarantees
    assert once.epsilon == pytest.approx(epsilon_of((Release(10, 1.0, 101),), 1e-5))


def test_what_comes_after_the_noise_is_free(facts):
    alone = state([GAUSSIAN], facts()).guarantees
    more = state([GAUSSIAN, make("quantise"), make("mask")], facts())
    assert more.guarantees == alone and more.heuristics == ("quantise", "mask")


def test_heuristics_promise_nothing(facts):
    found = state([make("clip"), make("quantise"), make("label-smoothing")], facts())
    assert found.guarantees == () and found.reasons == ()
    assert found.lines() == ["clip, quantise, label-smoothing: no formal privacy"]


@pytest.mark.parametrize(
    ("given", "changes", "why"),
    [
        ([FOR_RECORD], {}, "trained on the same records without noise"),
        ([DP], {}, "EntangledRep go out bare"),
        ([DP], {"protocol": "fedproto", "kinds": (Prototypes,)}, "Prototypes go out bare"),
        ([DP], {"training_only": False, "kinds": (ModelState,)}, "not known to use their data"),
    ],
)
def test_no_epsilon_for_what_is_not_covered(given, changes, why, facts):
    found = state(given, facts(**changes))
    assert found.guarantees == () and why in found.reasons[0]
    assert "epsilon" not in " ".join(found.lines())


@pytest.mark.slow
def test_private_training_covers_what_is_trained(facts):
    (found,) = state([DP], facts(**FEDAVG)).guarantees
    # 100 records, batches of 32: 3 steps in each of 100 rounds
    assert found.unit == "record"
    assert found.epsilon == epsilon_of((Release(2.0, 0.32, 300),), 1e-5)


@pytest.mark.slow
def test_private_training_and_noisy_uploads_are_added_up(facts):
    (both,) = state([DP, FOR_RECORD], facts()).guarantees
    trained = (Release(2.0, 0.32, 300),)
    assert both.epsilon == epsilon_of((*trained, Release(10.0, 1.0, 100)), 1e-5)
    assert both.epsilon > epsilon_of(trained, 1e-5) and both.by == ("dp-sgd", "gaussian")
    laplace = make("laplace", clip=1.0, epsilon=0.5, unit="record")
    (both,) = state([DP, laplace], facts()).guarantees
    assert both.epsilon == pytest.approx(epsilon_of(trained, 1e-5) + 50)


def test_a_client_and_its_records_can_be_promised_at_once(facts):
    found = state([DP, GAUSSIAN], facts(**FEDAVG)).guarantees
    assert [one.unit for one in found] == ["client", "record"]
    hidden = state([DP, GAUSSIAN], facts())
    assert [one.unit for one in hidden.guarantees] == ["client"] and not hidden.reasons


def test_laplace_is_pure_and_adds_up_plainly(facts):
    (found,) = state([make("laplace", clip=1.0, epsilon=0.1)], facts()).guarantees
    assert found.delta == 0 and found.epsilon == pytest.approx(10)


def test_what_stays_in_the_clear_is_said(facts):
    says = " ".join(state([GAUSSIAN], facts(kinds=(Prototypes, Counts))).lines())
    for part in ("which classes a client holds", "numbers of samples", "who takes part"):
        assert part in says
    assert "label encoding" in " ".join(state([GAUSSIAN], facts()).not_covered)


def test_the_record_is_plain_and_gives_the_noise_away(facts):
    wanted = make("gaussian", clip=1.0, epsilon=4.38)
    found = record([wanted, make("quantise")], facts())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["defense"][0]["name"] == "gaussian"
    assert found["defense"][0]["noise"] == pytest.approx(10, rel=5e-3)
    assert found["privacy"]["guarantees"][0]["epsilon"] == pytest.approx(4.38)
    assert len(found["privacy"]["guarantees"][0]["by_client"]) == 10
    assert "epsilon 4.38 at delta 1e-05 for one client" in found["privacy"]["says"][0]


@pytest.mark.parametrize(
    ("given", "changes", "says"),
    [
        ([dataclasses.replace(GAUSSIAN, delta=0.1)], {}, "with 10 clients it must be below 1/10"),
        ([dataclasses.replace(DP, delta=0.02)], FEDAVG, "with 100 records"),
        ([GAUSSIAN], {"protocol": "fedkd", "kinds": (LowRankChange,)}, "nothing to add noise to"),
        ([FOR_RECORD], FEDAVG, "Use dp-sgd for what is trained"),
        ([GAUSSIAN], {**FEDAVG, "buffers": True}, "running variances"),
        ([GAUSSIAN, make("laplace", clip=1.0)], {}, "both add noise to uploads"),
        ([DP, DP], {}, "both replace local training"),
        ([make("quantise"), FOR_RECORD], {}, "must come before quantise"),
        ([DP, dataclasses.replace(FOR_RECORD, delta=1e-6)], {}, "at different deltas"),
        ([make("prune")], {}, "acts on HeadState"),
        ([make("clip", where="representation")], FEDAVG, "nothing to shorten"),
        ([make("label-smoothing")], FEDAVG, "acts on EntangledRep"),
        ([make("nopeek")], FEDAVG, "acts on Representations, Prototypes, EntangledRep"),
        ([make("cem")], {"protocol": "fd", "kinds": (ClassLogits,)}, "sends ClassLogits"),
        ([make("mixup")], {"protocol": "fedkd", "kinds": (LowRankChange,)}, "sends LowRank"),
        ([make("nopeek"), DP], {}, "which 'dp-sgd' replaces"),
    ],
)
def test_what_does_not_fit_is_refused(given, changes, says, facts):
    problems = check_all(given, facts(**changes))
    assert any(says in problem for problem in problems), problems


class Doubles(Defense):
    """Doubles every representation."""

    name = "doubles"

    def represent(self):
        return lambda reps: 2 * reps


def test_representations_may_not_grow_after_they_were_bounded(facts):
    (problem,) = check_all([DP, FOR_RECORD, Doubles()], facts())
    assert "must come after doubles" in problem
    assert check_all([DP, Doubles(), FOR_RECORD], facts()) == []


def test_what_fits_is_not_refused(facts):
    assert check_all([DP, FOR_RECORD, make("quantise")], facts()) == []
    assert check_all([make("clip"), GAUSSIAN, make("prune")], facts(**FEDAVG)) == []


@pytest.mark.slow
def test_noise_is_worked_out_from_epsilon(facts):
    small = facts(**FEDAVG, participations=(100, 50) + (100,) * 8, rounds=100)
    wanted = make("dp-sgd", clip=1.0, epsilon=8.0)
    made = wanted.settled(small)
    assert made.epsilon is None and made.public(small)["noise"] == made.noise
    (found,) = state([made], small).guarantees
    assert 7.0 < found.epsilon <= 8.0 and found.by_client[1] < found.epsilon
    (quieter,) = state([make("dp-sgd", clip=1.0, noise=made.noise * 0.9)], small).guarantees
    assert quieter.epsilon > found.epsilon
    assert make("dp-sgd", clip=1.0, noise=2.0).settled(small).noise == 2.0
    with pytest.raises(ConfigError, match="No noise of at most"):
        make("dp-sgd", clip=1.0, epsilon=1e-6).settled(small)


def test_a_client_guarantee_bounds_a_line_up_by_half_of_its_mu(facts):
    """Epsilon 8 for a client: found among 100 in at most 6.8 %."""
    (found,) = state([make("gaussian", clip=1.0, epsilon=8.0)], facts()).guarantees
    assert found.line_up == pytest.approx(0.068, abs=5e-4)
    said = record([make("gaussian", clip=1.0, epsilon=8.0)], facts())["privacy"]["bound"]
    assert said.startswith("found among 100 at most 6.8% of the time by any attack")
    (pure,) = state([make("laplace", clip=1.0, epsilon=0.02)], facts()).guarantees
    assert pure.line_up == pytest.approx(min(0.01 * math.e, 1 - math.exp(-1) * 0.99), rel=1e-6)


def test_sampled_steps_bound_a_line_up_as_simulation_does(facts):
    """Steps at rate 0.1 and noise 1, a hundred of them: 0.143 by simulation, and little above."""
    known = facts(
        **FEDAVG, class_counts=((50, 50),), participations=(20,), rounds=20, batch_size=10,
        epochs=1, local_steps=5,
    )  # fmt: skip
    (found,) = state([make("dp-sgd", clip=1.0, noise=1.0)], known).guarantees
    assert found.line_up == pytest.approx(0.147, abs=1e-3)


def test_noise_on_uploads_is_added_to_what_steps_leave(facts):
    (alone,) = state([DP], facts(**FEDAVG)).guarantees
    (both,) = state([DP, FOR_RECORD], facts()).guarantees
    assert 0.01 < alone.line_up < both.line_up <= 1


def test_without_a_guarantee_there_is_no_bound_and_a_weak_one_is_called_so(facts):
    for given in ([make("clip", norm=1.0)], [FOR_RECORD]):
        assert state(given, facts()).bound().startswith("no bound: nothing is guaranteed")
    weak = state([make("gaussian", clip=1.0, noise=0.05)], facts())
    assert weak.bound() == "no bound: the guarantee for one client is too weak for one"


def test_what_leaves_rows_out_comes_after_noise_for_one_record(facts):
    """Before it one record would move what is left by more than the noise is for."""
    pooled = facts(protocol="fedcgs", kinds=(ClassStatistics,), trains=False)
    count = make("minimum-count", count=5)
    noise = make("statistics-noise", clip=1.0, noise=1.0, delta=1e-3)
    problems = check_all([count, noise], pooled)
    assert any("must come before minimum-count" in one for one in problems), problems
    assert check_all([noise, count], pooled) == []
