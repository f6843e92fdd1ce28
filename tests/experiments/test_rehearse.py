"""Estimates of a dry run: what repeats is told from what does not, whatever the attack's loops."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from fedre_privacy.core.events import Event
from fedre_privacy.experiments import dry_run as rehearse


@dataclass(frozen=True)
class Looping:
    loops = {"steps": 2, "updates": 2, "absent": 2}
    steps: int = 300
    updates: int = 1000


@pytest.fixture
def estimate(monkeypatch):
    """Estimated seconds of an attack that takes so long apart from its loops, and the passes."""

    def made(fixed, step, update, attack=None, tells=False):
        clock, passes = [0.0], []

        def play(attack, observation, context, **_):
            passes.append((attack.steps, attack.updates))
            clock[0] += fixed + update * attack.updates
            for number in range(attack.steps):
                clock[0] += step
                if tells:
                    context.report(Event("attack.step", {"step": number, "first": 0}))

        monkeypatch.setattr(rehearse, "run_attack", play)
        monkeypatch.setattr(rehearse.time, "monotonic", lambda: clock[0])
        question = SimpleNamespace(outcome=lambda: None)
        monkeypatch.setattr(rehearse, "question_of", lambda settings: question)
        trial = SimpleNamespace(observation=None, attack_seed=0, hidden=lambda: ())
        settings = SimpleNamespace(attack=attack or Looping())
        return rehearse._attack_seconds(trial, settings, torch.device("cpu")), passes

    return made


@pytest.mark.parametrize("fixed", [0.0, 1.0, 20.0])
@pytest.mark.parametrize(("step", "update"), [(0.01, 0.02), (1.0, 0.01), (0.0, 0.0), (1e-5, 1e-5)])
def test_loops_are_extrapolated_and_the_rest_is_not(estimate, fixed, step, update):
    told, passes = estimate(fixed, step, update)
    assert told == pytest.approx(fixed + 300 * step + 1000 * update, rel=1e-6)
    assert passes[0] == (2, 2)  # few of each first


def test_a_long_attack_is_passed_few_times(estimate):
    _, passes = estimate(20.0, 0.1, 0.02)
    assert passes == [(2, 2), (128, 2), (2, 128)]


def test_slow_steps_that_are_told_are_repeated_as_often_as_they_have_to_be(estimate):
    told, passes = estimate(1.0, 5.0, 0.0, tells=True)
    assert told == pytest.approx(1 + 300 * 5.0)
    assert passes[:2] == [(2, 2), (3, 2)]
    told, passes = estimate(1.0, 0.1, 0.0, tells=True)
    assert told == pytest.approx(1 + 300 * 0.1) and (5, 2) in passes


def test_no_more_than_asked_is_repeated(estimate):
    told, passes = estimate(1.0, 0.5, 0.0, Looping(steps=1, updates=3))
    assert told == pytest.approx(1.5) and max(passes) <= (1, 3)
