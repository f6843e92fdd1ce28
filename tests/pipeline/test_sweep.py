"""Sweeps: planned before anything runs, resumable, a failure is kept and never averaged away."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.pipeline import sweep
from fedre_privacy.pipeline.benchmark import BenchmarkResult, benchmark, planned, read_sweep
from fedre_privacy.pipeline.suite import default_suite, named_suite
from fedre_privacy.pipeline.sweep import Place, frame, over_seeds, run_job

BASE = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "partition": {"name": "pra", "alpha": 0.5},
    "model": {"name": "cnn4", "dim": 16},
    "train": {"clients": 3, "rounds": 1, "batch_size": 8},
}
LABELS = ["labels@labels@realistic"]


def wanted(**keys):
    return read_sweep({"name": "tiny", "seeds": [0], "attacks": LABELS, **keys}, BASE, name="")


def test_a_plan_resolves_every_job_and_refuses_all_problems_at_once():
    jobs = planned(wanted(protocols=["fedgh", "fedproto"], seeds=[0, 1]))
    assert [(job.label, job.seed) for job in jobs] == [
        ("fedgh", 0), ("fedgh", 1), ("fedproto", 0), ("fedproto", 1),
    ]  # fmt: skip
    assert len({job.name for job in jobs}) == 4
    with pytest.raises(ConfigError) as refused:
        planned(wanted(protocols=["fedxx"], vary={"odd": {"train": {"clients": 0}}}))
    said = str(refused.value)
    assert "fedxx: Unknown protocol" in said and "odd: 'train.clients' is 0" in said
    with pytest.raises(ConfigError, match="same training as"):
        planned(wanted(schemes=["rap"], protocols=["fedre"]))


def test_keys_and_emptiness_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'protocols'"):
        read_sweep({"protocol": ["fedre"]}, {}, name="x")
    with pytest.raises(ConfigError, match="Nothing to compare"):
        read_sweep({}, {}, name="x")
    with pytest.raises(ConfigError, match="Unknown target 'prototype'"):
        named_suite(["dip@prototype"])


def test_entangled_uploads_keep_every_round():
    jobs = planned(wanted(protocols=["fedgh"], schemes=["rap", "rsr"]))
    kept = {job.label: job.training.record.keep_every for job in jobs}
    assert kept == {"fedgh": 0, "rap": 1, "rsr": 1}


def test_the_suite_fits_what_is_uploaded():
    (job,) = planned(wanted(protocols=["fedre"], attacks=None))
    asked = {(s.attack.name, s.target) for s in job.attacks}
    assert ("disentangle", "uploaded") in asked and ("dip", "recovered-prototypes") in asked
    (local,) = planned(wanted(protocols=["local"], attacks=None))
    assert default_suite(local.training) == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two variants, one of which fails in its own process; the other has two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    module = folder / "failing_scheme.py"
    module.write_text(
        "from dataclasses import dataclass\n"
        "from fedre_privacy.entanglement.base import Entanglement\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Failing(Entanglement):\n"
        "    def sample_weights(self, labels, num_classes, rng):\n"
        "        raise RuntimeError('this scheme is broken')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))
        asked = wanted(schemes=["failing_scheme:Failing", "vap"], seeds=[0, 1])
        made = benchmark(asked, folder=folder / "out", runs=folder / "runs")
        yield folder, asked, made
    sys.modules.pop("failing_scheme", None)


def test_a_broken_scheme_is_named_and_left_out(finished):
    folder, _, made = finished
    failures = made.failures()
    assert len(failures) == 2 and all("this scheme is broken" in text for text in failures)
    result = json.loads(next((folder / "out" / "jobs").glob("Failing-s0*.json")).read_text())
    assert result["status"] == "failed" and "RuntimeError" in result["traceback"]
    assert set(made.summary["label"]) == {"vap"} and made.summary["seeds"].eq(2).all()
    (row,) = made.table()
    assert row["variant"] == "vap" and row["labels"].startswith("1.00 (")
    assert (folder / "out" / "results.csv").is_file()


def test_what_is_finished_is_not_repeated(finished, monkeypatch):
    folder, asked, made = finished

    def never(*_):
        raise AssertionError("a job was started again")

    monkeypatch.setattr(sweep, "call", never)
    again = benchmark(asked, folder=folder / "out", runs=folder / "runs")
    pd.testing.assert_frame_equal(again.rows, made.rows)


def test_a_killed_sweep_goes_on_to_the_same_result(finished, tmp_path):
    """Lose one result and break off one run: what is missing is done again, the same."""
    folder, asked, made = finished
    job = next(job for job in planned(asked) if job.label == "vap")
    place = Place(folder / "out", folder / "runs")
    before = place.read(job)
    place.result(job).unlink()
    record = folder / "runs" / before["run"] / "record.json"
    broken = json.loads(record.read_text())
    record.write_text(json.dumps({**broken, "status": "partial"}))
    again = benchmark(asked, folder=folder / "out", runs=folder / "runs")
    after = place.read(job)
    assert {k: v for k, v in after.items() if k != "wall_s"} == {
        k: v for k, v in before.items() if k != "wall_s"
    }
    pd.testing.assert_frame_equal(again.rows, made.rows)


LONG = """
import signal
from pathlib import Path
from test_sweep_settings import asked
from fedre_privacy.pipeline.benchmark import benchmark
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a script's background
benchmark(asked, folder=Path("out"), runs=Path("runs"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_sweep_leaves_no_job_behind(tmp_path, how):
    """Break off the sweep's own process while a job trains: the job ends too."""
    settings = (
        "from fedre_privacy.pipeline.benchmark import read_sweep\n"
        f"BASE = {BASE | {'train': BASE['train'] | {'rounds': 5000}}!r}\n"
        "asked = read_sweep({'protocols': ['fedgh'], 'seeds': [0], 'attacks': [], 'name': 'x'}, "
        "BASE, name='')\n"
    )
    (tmp_path / "test_sweep_settings.py").write_text(settings)
    process = subprocess.Popen([sys.executable, "-c", LONG], cwd=tmp_path)
    try:
        _until(lambda: list(tmp_path.glob("runs/*/metrics.csv")))
        children = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
        )
        (child,) = children.stdout.split()
        process.send_signal(how)
        process.wait(timeout=60)
        _until(lambda: not Path(f"/proc/{child}").exists() or _dead(int(child)))
    finally:
        process.kill()
    assert not list((tmp_path / "out" / "jobs").glob("*.json"))  # to be done again


def _dead(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _until(met, seconds=240):
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)


def test_a_pruned_run_is_trained_again_where_its_result_is_lost(finished):
    folder, asked, made = finished
    job = next(job for job in planned(asked) if job.label == "vap")
    place = Place(folder / "out", folder / "runs")
    before = place.read(job)
    place.result(job).unlink()
    for name in ("models", "uploads", "private"):
        shutil.rmtree(folder / "runs" / before["run"] / name)
    shutil.rmtree(folder / "runs" / before["run"] / "attacks")
    run_job(job, place, torch.device("cpu"))
    after = place.read(job)
    assert after["status"] == "complete", after.get("traceback")
    assert after["attacks"] == before["attacks"] and after["final"] == before["final"]


def test_the_matrix_says_what_cannot_be_read(finished):
    _, _, made = finished
    cells = made.cells()
    assert set(cells["variant"]) == {"vap"} and cells["leakage"].notna().all()
    assert made.matrix().get_axes()


def test_means_are_over_seeds_and_say_how_many():
    def job(label, seed, status, value):
        entry = {"attack": "a", "target": "t", "threat": "s", "counterfactual": False,
                 "verdict": "v", "folder": "f", "measures": [
                     {"name": "PSNR", "value": value, "floor": 10.0, "leakage": value - 10.0,
                      "interval": None, "n": 4, "unit": "dB"}]}  # fmt: skip
        done = status == "complete"
        return {
            "label": label, "seed": seed, "status": status, "attacks": [entry] if done else [],
            "training": {"protocol": {"name": "fedgh"}}, "failure": None if done else "why",
            "final": {"acc_post_broadcast": 0.5 + seed / 10, "up_scalars": 7} if done else None,
        }  # fmt: skip

    rows = frame([job("x", 0, "complete", 12.0), job("x", 1, "complete", 16.0),
                  job("x", 2, "failed", 99.0)])  # fmt: skip
    (mean,) = over_seeds(rows).to_dict("records")
    assert (mean["seeds"], mean["failed"], mean["n"]) == (2, 1, 8)
    assert mean["leakage"] == 4.0 and mean["value"] == 14.0
    assert mean["accuracy"] == pytest.approx(0.55)
    made = BenchmarkResult(Path("x"), rows, over_seeds(rows))
    assert made.failures() == ["x, seed 2: why"]
    assert made.points()[0].leakage == 4.0
