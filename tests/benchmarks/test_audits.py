"""Audits of mechanisms that keep their promise are wrong as seldom as they say, and show most."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="module")
def audits(load):
    return load("audits")


@pytest.mark.slow
def test_a_million_draws_show_nearly_all_of_the_true_epsilon_and_seldom_more(audits):
    """At most 18 of 200 bounds above the truth, where 10 are expected: chance 0.6 % of more."""
    rows = pd.DataFrame([audits.noise_alone(1.0, seed) for seed in range(200)])
    shown = rows["shown"] / rows["promised"]
    assert shown.min() >= 0.9
    assert int((shown > 1).sum()) <= 18
    assert int(rows["refuted"].sum()) <= 2
    assert np.median(shown) > 0.98


def test_halved_noise_is_refuted_by_the_same_draws(audits, monkeypatch):
    from fedre_privacy.defenses import gaussian

    real = gaussian.noisy
    monkeypatch.setattr(gaussian, "noisy", lambda a, scales, draw: real(a, scales / 2, draw))
    found = audits.noise_alone(1.0, 0, draws=10_000)
    assert found["refuted"] and found["shown"] > found["promised"]


def test_what_is_done_is_not_repeated(audits, tmp_path, monkeypatch, capsys):
    calls = []

    def once(seed):
        calls.append(seed)
        return {"shown": 1.0, "promised": 2.0, "refuted": False}

    monkeypatch.setattr(audits, "CASES", {"one": once})
    for repetitions in ("3", "5"):
        assert audits.main(["--repetitions", repetitions, "--out", str(tmp_path)]) == 0
    assert calls == [0, 1, 2, 3, 4]
    assert "0.0% [0.0%, 52.2%]" in capsys.readouterr().out
