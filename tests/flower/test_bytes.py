"""The round loop over clients that are reached by bytes and live on disk: the same numbers."""

import pandas as pd
import pytest

from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.training import train
from tests.flower.conftest import recorded, tiny

QUICK = ("fedre", "fedtgp")
EVERY = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in protocols.names()
]


def same(one, two):
    """Whether two runs hold the same uploads, models, truth and metrics."""
    assert recorded(one.folder) == recorded(two.folder)
    a, b = (pd.read_csv(run.folder / "metrics.csv").drop(columns="wall_s") for run in (one, two))
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    a, b = (run.folder / "clients.csv" for run in (one, two))
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("name", EVERY)
def test_every_protocol_records_the_same(tmp_path, bytes_engine, name):
    settings = tiny(name, train={"join_ratio": 0.67, "rounds": 3}, record={"keep_every": 1})
    here = train(settings, runs=tmp_path / "here")
    there = train(settings, runs=tmp_path / "there", engine=bytes_engine)
    same(here, there)
