"""SIGKILL at the two worst moments, and the run that goes on."""

import csv
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from fedre_privacy.cli.train import main
from fedre_privacy.federation import loop

pytestmark = pytest.mark.slow

KILLED = """
import os, sys, time
from fedre_privacy.federation import loop
from fedre_privacy.cli.train import main

loop.CHECKPOINT_SECONDS = 0
place, left = sys.argv[1], int(sys.argv[2])
replace = os.replace

def wait_before(source, target):
    global left
    if str(target).endswith(place):
        left -= 1
        if left == 0:
            print("ready", flush=True)
            time.sleep(600)
    replace(source, target)

os.replace = wait_before
sys.exit(main(sys.argv[3:]))
"""

MOMENTS = {
    # round 3 lies in its file, but the index does not know it yet
    "between the tensors and the index": ("uploads/index.json", "3"),
    # round 2 is recorded, but its checkpoint has not yet replaced that of round 1
    "within a checkpoint": ("checkpoints/state.safetensors", "2"),
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """A training command without --runs-dir, on 60 small images."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = (
        rng.integers(0, 200, (60, 16, 16, 1)).astype(np.uint8) + (labels * 25)[:, None, None, None]
    )
    np.savez(folder / "tiny.npz", images=images.astype(np.uint8), labels=labels)
    sets = ["train.batch_size=4", "record.keep_every=1", "train.join_ratio=0.7"]
    return [
        *("--dataset", f"npz:{folder / 'tiny.npz'}", "--partition", "iid", "--quiet"),
        *("--clients", "3", "--rounds", "4", "--device", "cpu"),
        *(part for item in sets for part in ("--set", item)),
    ]


@pytest.fixture(scope="module")
def whole(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert main([*arguments, "--runs-dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def killed(arguments, tmp_path_factory):
    """Folders whose training was killed with SIGKILL, by moment; both run at once."""
    folders, running = {}, {}
    for moment, (place, count) in MOMENTS.items():
        folders[moment] = tmp_path_factory.mktemp("killed")
        command = [sys.executable, "-c", KILLED, place, count, *arguments]
        command += ["--runs-dir", str(folders[moment])]
        running[moment] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for process in running.values():
        try:
            assert process.stdout.readline() == "ready\n"
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    return folders


DRAWN = {
    f"{name}.{ending}"
    for name in ("accuracy", "clients", "partition", "prototypes")
    for ending in ("png", "pdf", "svg", "csv")
} - {"clients.csv"}


def _contents(runs):
    """Every file of the one run, without what tells time; half-written files are not looked at."""
    (run,) = runs.iterdir()
    out = {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and not path.name.startswith(".") and path.name != "log.txt"
    }
    record = json.loads(out.pop("record.json"))
    listed = json.loads(out.pop("manifest.json"))["files"]
    assert listed.keys() >= {"record.json", "metrics.csv", *out} - {"drawn.json", *DRAWN}
    rows = list(csv.DictReader(out.pop("metrics.csv").decode().splitlines()))
    out |= {f"hash of {name}": listed[name] for name in listed.keys() & out.keys()}
    for row in rows:
        del row["wall_s"]
    return out, rows, {k: v for k, v in record.items() if k not in ("started", "wall_s")}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    moment, arguments, whole, killed, monkeypatch, capsys
):
    command = [*arguments, "--runs-dir", str(killed[moment])]
    (run,) = killed[moment].iterdir()
    assert json.loads((run / "record.json").read_text())["status"] == "partial"
    assert (run / "checkpoints" / "state.safetensors").is_file()
    before = json.loads((run / "uploads" / "index.json").read_text())
    assert max(message["round"] for message in before["messages"]) == 2

    assert main(command) == 2  # not without a decision
    assert "--resume" in capsys.readouterr().err
    trained = []
    step = loop.client_step

    def counted(protocol, client, message, task, **known):
        trained.append(task.round)
        return step(protocol, client, message, task, **known)

    monkeypatch.setattr(loop, "client_step", counted)
    assert main([*command, "--resume"]) == 0
    done = 2 if "index" in moment else 1
    assert sorted(set(trained)) == list(range(done + 1, 5))
    assert _contents(killed[moment]) == _contents(whole)
    assert capsys.readouterr().out.strip() == str(run)
