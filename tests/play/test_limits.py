"""What no unbiased attack can beat: printed where normal noise covers vectors, and nowhere else."""

from __future__ import annotations

import math

import pytest

from fedre_privacy.core.channels import Bound, Channel, Masking, Noise, Summed
from fedre_privacy.play.attack import prepare_attack
from fedre_privacy.play.limits import _noise_and_bound
from fedre_privacy.runs.resolving import resolve_attack
from fedre_privacy.runs.training import train

QUIET = Noise(0.1, per_row=True, normal=True)


def limit(run):
    problems: list[str] = []
    values = {
        "target": "uploaded",
        "threat": "strong",
        "eval": {"targets": 20, "fewest_first": True},
    }
    settings = resolve_attack(values, {}, problems)
    assert settings is not None and not problems
    trial = prepare_attack(run, settings)
    return trial.limit.says() if trial.limit else "", trial.lines().get("Bound", "")


@pytest.fixture
def run(tiny, tmp_path):
    def made(*defense, protocol="fedallrep"):
        settings = tiny(protocol=protocol, defense=list(defense), train={"rounds": 1})
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


def test_bounds_before_the_noise_count_and_sums_over_clients_do_not():
    noise, bound = _noise_and_bound(Channel(rows=(Bound(3.0), Bound(2.0), QUIET, Masking())))
    assert noise == QUIET and bound == 2.0
    assert _noise_and_bound(Channel(rows=(QUIET,))) == (QUIET, math.inf)
    assert _noise_and_bound(Channel(rows=(QUIET,), round=(Summed(),))) is None
    assert _noise_and_bound(Channel(rows=(Noise(0.1),))) is None
    assert _noise_and_bound(Channel()) is None
