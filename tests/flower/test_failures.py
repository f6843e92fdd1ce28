"""One training over real processes meets one failure after another: the same bytes."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest

from fedre_privacy.core.errors import FedreError, IncompatibleError, MissingInputError, StorageError
from fedre_privacy.flower.local_federation import Loopback
from fedre_privacy.runs.folder import status_of
from fedre_privacy.runs.training import train
from tests.flower.conftest import CPU, recorded, tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("flwr") is None, reason="Flower is not installed: extra 'flower'"
    ),
]

FAULTS = """
import resource

from fedre_privacy.flower import client

own, answer = client.__version__, client.Worker.answer


def faulty(self, data):
    version, full = self.folder / "version", self.folder / "full"
    client.__version__ = version.read_text() if version.is_file() else own
    most = 1000 if full.is_file() else -1
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, -1))
    return answer(self, data)


client.Worker.answer = faulty
"""
"""A plug-in: a client whose folder says so is of another version, or finds its disk full."""


@pytest.fixture
def federation(tmp_path, monkeypatch):
    (tmp_path / "flower_faults.py").write_text(FAULTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Loopback(tmp_path / "fed", 2, CPU, patience=300, plugins=["flower_faults"]) as made:
        yield made


def test_a_training_that_meets_every_failure_ends_with_the_same_bytes(tmp_path, federation):
    settings = tiny("fedavg", train={"clients": 2, "rounds": 4, "eval_every": 4})
    folder = tmp_path / "there" / settings.run_name
    one, two = (federation.client_folder(k) for k in (0, 1))

    def go_on(after=0, trouble=lambda: None):
        """Train on; after a round, do something."""
        return train(
            settings,
            runs=tmp_path / "there",
            engine=federation,
            resume=folder.exists(),
            report=lambda e: trouble() if e.data.get("round") == after else None,
        )

    two.mkdir(parents=True, exist_ok=True)
    (two / "version").write_text("9.9")
    with pytest.raises(IncompatibleError, match=r"Client 1: The server runs .* client 1 9\.9"):
        go_on()
    (two / "version").unlink()

    def slow():
        os.kill(federation.parties[1].pid, signal.SIGSTOP)
        federation.patience = 20  # for the next server

    federation.patience = 30
    with pytest.raises(MissingInputError, match=r"No answer from client 1 within 30 s"):
        go_on(1, slow)
    federation.parties[1].send_signal(signal.SIGCONT)
    federation.patience = 300

    with pytest.raises(FedreError, match="ended without a word"):
        go_on(2, lambda: federation.link.kill())
    assert status_of(folder) == "failed"

    with pytest.raises(StorageError, match=r"Client 0: .* could not be written: File too large"):
        go_on(3, (one / "full").touch)
    (one / "full").unlink()

    there = go_on()
    assert recorded(train(settings, runs=tmp_path / "here").folder) == recorded(there.folder)
    assert federation.revived == 0
