"""What no unbiased attack can beat: printed where normal noise covers vectors, and nowhere else."""

from __future__ import annotations

import math

import pytest

from fedre_privacy.core.channels import Channel, ClippingStep, Masking, Noise, SummingStep
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.fisher_bounds import Limit, _noise_and_bound
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train

QUIET = Noise(0.1, per_row=True, normal=True)


def prepared(run):
    problems: list[str] = []
    values = {
        "target": "uploaded",
        "threat": "strong",
        "eval": {"targets": 20, "fewest_first": True},
    }
    settings = resolve_attack(values, {}, problems)
    assert settings is not None and not problems
    return prepare_attack(run, settings)


def limit(run):
    trial = prepared(run)
    return trial.limit.says() if trial.limit else "", trial.lines().get("Bound", "")


@pytest.fixture
def run(tiny, tmp_path):
    def made(*defense, protocol="fedallrep", rounds=1, **more):
        settings = tiny(protocol=protocol, defense=list(defense), train={"rounds": rounds}, **more)
        return train(settings, runs=tmp_path)

    return made


def test_a_limit_falls_by_twenty_decibels_for_ten_times_the_noise(run):
    found = []
    for noise in (1e-5, 1e-4):
        said, line = limit(run({"name": "gaussian", "clip": 1.0, "noise": noise}))
        assert said.startswith("no attack without a prior on images (unbiased) is nearer than ")
        assert said in line and "n 20 of one image" in said
        found.append(float(said.split("nearer than ")[1].split(" dB")[0]))
    assert found[0] - found[1] == pytest.approx(20, abs=0.11)


def test_much_noise_leaves_nothing(run):
    said, _ = limit(run({"name": "gaussian", "clip": 1.0, "noise": 5.0}))
    assert said.startswith("an attack without a prior on images (unbiased) gets nothing")


@pytest.mark.parametrize(
    "defense",
    [
        (),
        ({"name": "clip", "norm": 1.0},),
        ({"name": "laplace", "clip": 1.0, "epsilon": 1e4},),
        ({"name": "mask", "keep": 0.5}, {"name": "gaussian", "clip": 1.0, "noise": 1e-4}),
    ],
    ids=["none", "clip", "laplace", "mask first"],
)
def test_where_noise_is_missing_or_another_or_not_first_nothing_is_said(run, defense):
    said, line = limit(run(*defense))
    assert said == "" and "unbiased" not in line


def test_information_of_every_kept_round_adds_up(run):
    quiet = {"name": "gaussian", "clip": 1.0, "noise": 1e-4}
    last = prepared(run(quiet, rounds=4)).limit
    every = prepared(run(quiet, rounds=4, record={"keep_every": 1})).limit
    assert (last.rounds, every.rounds) == (1, 4) and "4 rounds" in every.says()
    # four uploads of much the same extractor tell about four times as much
    assert last.error / every.error == pytest.approx(4, rel=0.3)


def test_noise_for_one_record_has_a_limit_on_the_vectors_that_are_one_record_s(run):
    steps = {"name": "dp-sgd", "noise": 1.0, "clip": 1.0}
    found = [
        prepared(run(steps, {"name": "gaussian", "clip": 1.0, "noise": z, "unit": "record"})).limit
        for z in (1e-4, 1e-3)
    ]
    assert found[1].error / found[0].error == pytest.approx(100, rel=0.01)


def test_a_limit_is_a_measure_of_targets_of_one_image(run):
    found = prepared(run({"name": "gaussian", "clip": 1.0, "noise": 1e-5})).limit
    told = found.measure()
    assert told.value == pytest.approx(found.decibels) and (told.group, told.unit) == ("1", "dB")
    nothing = Limit(math.inf, 3, 1)
    assert nothing.measure().value is None and "gets nothing" in nothing.says()


def test_bounds_before_the_noise_count_and_sums_over_clients_do_not():
    noise, bound = _noise_and_bound(
        Channel(rows=(ClippingStep(3.0), ClippingStep(2.0), QUIET, Masking()))
    )
    assert noise == QUIET and bound == 2.0
    assert _noise_and_bound(Channel(rows=(QUIET,))) == (QUIET, math.inf)
    assert _noise_and_bound(Channel(rows=(QUIET,), round=(SummingStep(),))) is None
    assert _noise_and_bound(Channel(rows=(Noise(0.1),))) is None
    assert _noise_and_bound(Channel()) is None
