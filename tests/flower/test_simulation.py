"""Flower's own simulation gives the bytes of one process."""

from __future__ import annotations

import importlib.util
import os

import pytest

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.flower import simulation
from fedre_privacy.runs.folder import status_of
from fedre_privacy.runs.training import train
from tests.flower.conftest import recorded, tiny

BOTH = all(importlib.util.find_spec(name) for name in ("flwr", "ray"))
needs_both = pytest.mark.skipif(
    not BOTH, reason="Flower or Ray is not installed: extras 'flower,ray'"
)


@needs_both
@pytest.mark.slow
def test_the_simulation_goes_on_where_it_ended_with_the_bytes_of_one_process(tmp_path):
    settings = tiny("fedtgp", train={"rounds": 3, "join_ratio": 0.67})
    before = dict(os.environ)

    def end(event):
        if event.data.get("round") == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, runs=tmp_path / "there", engine=simulation.simulation, report=end)
    folder = tmp_path / "there" / settings.run_name
    assert status_of(folder) == "partial"
    there = train(settings, runs=tmp_path / "there", engine=simulation.simulation, resume=True)
    here = train(settings, runs=tmp_path / "here")
    assert recorded(here.folder) == recorded(there.folder) != {}
    assert not (folder / "federation").exists()
    assert os.environ.get("PYTHONPATH") == before.get("PYTHONPATH")


@needs_both
def test_what_cannot_have_clients_elsewhere_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(IncompatibleError, match="single uploads"):
        train(tiny("fedavg", defense=["secagg"]), runs=tmp_path, engine=simulation.simulation)
