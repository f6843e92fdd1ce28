"""The table of load: points that grow by known powers, and what was quadratic stays linear."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

from fedre_privacy.active_server.behaviour import ServerBehaviour
from fedre_privacy.api import train
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder
from fedre_privacy.federation.steps import Broadcasts
from fedre_privacy.protocols.blocks.state import Setting, Training
from fedre_privacy.runs import preparation as preparing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_exponents_are_those_of_the_costs(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    load = runpy.run_path(str(BENCHMARKS / "load.py"))

    def point(size, seconds):
        return {
            "axis": "clients", "size": size, "parts": {"training": seconds}, "files": 7,
            "peak_bytes": 100 * size, "bytes": size**2, "largest_bytes": 1, "largest": "one",
        }  # fmt: skip

    rows = load["table"]([point(10, 1.0), point(1000, 10.0)]).splitlines()
    assert rows[2].endswith("| - |") and rows[3].endswith("| 0.50, 1.00, 0.00, 2.00 |")
    sys.modules.pop("tools", None)


def calls_of(function, monkeypatch, where, name):
    """How often `name` of `where` is called by a function."""
    counted = []
    real = getattr(where, name)

    def counting(*given, **more):
        counted.append(given)
        return real(*given, **more)

    monkeypatch.setattr(where, name, counting)
    function()
    return len(counted)


def test_who_gets_a_broadcast_is_drawn_once_a_round(monkeypatch):
    settings = Training(clients=300, rounds=4, join_ratio=0.5)
    setting = Setting(settings, 2, (1, 16, 16), (), (), (), torch.device("cpu"))

    def ask():
        post = loop.Post(setting, 3, Broadcasts((), ()), ServerBehaviour((), 0, 300, 2))
        assert len(post.receivers) == 150
        for client in post.receivers:
            post.message(client)
        post.broadcasts()

    assert calls_of(ask, monkeypatch, loop, "select") <= 2


def test_the_index_is_not_written_after_every_round(monkeypatch, tmp_path):
    def run():
        few = {"data.size": 16, "data.per_class": 12, "model.dim": 8, "train.batch_size": 128}
        train("fedgh", "digits", clients=2, rounds=8, partition="iid", runs=tmp_path, set=few)

    assert calls_of(run, monkeypatch, Recorder, "save") <= 2


def test_models_that_no_machine_can_hold_are_refused_before_training(monkeypatch, tmp_path):
    monkeypatch.setattr(preparing, "available_bytes", lambda: 1_000_000)
    with pytest.raises(IncompatibleError, match=r"of 10 clients \(cnn4, .* take .* has 976"):
        train("fedre", "digits", runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_refusal_of_many_clients_stays_short(tmp_path):
    with pytest.raises(IncompatibleError) as caught:
        train("fedre", "digits", clients=1500, partition="iid", runs=tmp_path)
    assert len(str(caught.value)) < 800 and "more" in str(caught.value)
