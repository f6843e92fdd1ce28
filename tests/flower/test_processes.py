"""A real federation on this machine: TLS, authenticated nodes, processes killed for real."""

import importlib.util
import os
import shutil
import signal
import time

import pytest

from fedre_privacy.core.errors import FedreError
from fedre_privacy.flower.commands import start, stop
from fedre_privacy.flower.local_federation import HOST, Loopback, free_port
from fedre_privacy.runs.folder import status_of
from fedre_privacy.runs.training import train
from tests.flower.conftest import CPU, recorded, tiny

FLOWER = importlib.util.find_spec("flwr") is not None
if FLOWER:  # keys are made by a package that comes with Flower
    from fedre_privacy.flower.keys import AUTHORITY, write_keys

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FLOWER, reason="Flower is not installed: extra 'flower'"),
]


def kill(path):
    """Kill the process whose number a file holds."""
    os.kill(int(path.read_text()), signal.SIGKILL)


def test_killed_nodes_and_a_killed_server_change_no_byte(tmp_path):
    settings = tiny("fedtgp", train={"clients": 2, "eval_every": 2})
    here = train(settings, runs=tmp_path / "here")
    with Loopback(tmp_path / "fed", 2, CPU, patience=300) as federation:

        def trouble(event):
            if event.data.get("round") == 1:
                kill(federation.client_folder(0) / "supernode.pid")
                os.kill(federation.server, signal.SIGKILL)

        with pytest.raises(FedreError, match="ended without a word"):
            train(settings, runs=tmp_path / "there", engine=federation, report=trouble)
        assert status_of(tmp_path / "there" / settings.run_name) == "failed"
        federation.parties[1].kill()
        there = train(settings, runs=tmp_path / "there", engine=federation, resume=True)
        assert federation.revived == 1
    assert recorded(here.folder) == recorded(there.folder)
    assert not federation.keys.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((federation.client_folder(0) / "supernode.pid").read_text()), 0)


def test_strangers_are_refused(tmp_path):
    """A SuperNode that trusts another authority, and one whose key nobody registered."""
    with Loopback(tmp_path / "fed", 1, CPU) as federation:
        write_keys(tmp_path / "other", 1)
        shutil.copy(federation.keys / AUTHORITY, tmp_path / AUTHORITY)

        def node(name, authority, key):
            command = [
                "flower-supernode", "--superlink", f"{HOST}:{federation.port}",
                "--port", str(free_port()), "--root-certificates", str(authority),
                "--auth-supernode-private-key", str(key), "--max-retries", "1",
            ]  # fmt: skip
            return start(command, tmp_path / f"{name}.log", tmp_path / "home")

        strangers = {
            "authority": node("authority", tmp_path / "other" / AUTHORITY,
                              federation.keys / "client0"),
            "key": node("key", tmp_path / AUTHORITY, tmp_path / "other" / "client0"),
        }  # fmt: skip
        until = time.monotonic() + 60
        while any(p.poll() is None for p in strangers.values()) and time.monotonic() < until:
            time.sleep(0.5)
        stop(list(strangers.values()))
        said = {name: (tmp_path / f"{name}.log").read_text() for name in strangers}
        assert "CERTIFICATE_VERIFY_FAILED" in said["authority"]
        assert "Failed to activate SuperNode" in said["key"]
        told = federation.log("superlink").read_text()
        assert "Attempted to register SuperNode with public key" in told
