"""Jobs of a benchmark on several GPUs, in shards, and on a cluster whose GPUs are made up."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedre_privacy.api.workflows import PAGE
from fedre_privacy.benchmarking import executors
from fedre_privacy.benchmarking.executors import Resources
from fedre_privacy.benchmarking.jobs import BenchmarkJob, Place, Shard
from fedre_privacy.benchmarking.ray_cluster import job_needs
from fedre_privacy.benchmarking.ray_cluster import run as run_on_ray
from fedre_privacy.benchmarking.sweep import run_jobs
from fedre_privacy.benchmarking.variants import read_sweep
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.files import write_json
from fedre_privacy.core.lock import lease_folder
from fedre_privacy.experiments.attack import AttackResult
from fedre_privacy.runs.device import VISIBLE, visible_gpus

TINY = {
    "data": {"name": "digits", "size": 16, "per_class": 4},
    "partition": {"name": "pra", "alpha": 100},
    "model": {"name": "cnn4", "dim": 8},
    "train": {"clients": 2, "rounds": 1, "batch_size": 8},
}


def planned(count: int, attacks: Sequence[str] = ()) -> list[BenchmarkJob]:
    """Small jobs."""
    described = {
        "name": "t", "protocols": ["fedgh" if attacks else "local"], "attacks": list(attacks),
        "seeds": list(range(count)),
    }  # fmt: skip
    return read_sweep(described, TINY, name="").jobs


# --- GPUs of one machine ----------------------------------------------------------------------

SEES = """
import os, sys, time
from pathlib import Path
me = Path(sys.argv[1])
me.with_suffix(".sees").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "nothing set"))
end = time.monotonic() + 20  # so that two run at a time
while len(list(me.parent.glob("*.sees"))) < 2 and time.monotonic() < end:
    time.sleep(0.02)
"""


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts two GPUs in this process."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, workers: int) -> list[str]:
    """What four jobs see of the GPUs."""
    (tmp_path / "sees.py").write_text(SEES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    jobs, place = planned(4), Place(tmp_path, tmp_path / "runs")
    (tmp_path / "jobs").mkdir()
    words = {job.name: ["sees", str(tmp_path / "jobs" / f"{job.name}.yaml")] for job in jobs}
    before = dict.fromkeys(words)
    done = executors.local(jobs, place, words, Resources(device, workers, 1), before)
    assert [code for _, code in done] == [0] * 4
    return sorted(path.read_text() for path in (tmp_path / "jobs").glob("*.sees"))


@pytest.mark.parametrize(
    ("device", "named", "saw"),
    [("cuda", None, {"0", "1"}), ("auto", None, {"0", "1"}), ("cuda", "3,GPU-7", {"3", "GPU-7"}),
     ("cuda:1", None, {"nothing set"}), ("cpu", None, {"nothing set"})],
)  # fmt: skip
def test_jobs_see_the_gpu_of_their_slot(
    device: str, named: str | None, saw: set[str], two_gpus: None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv(VISIBLE, raising=False)
    if named:
        monkeypatch.setenv(VISIBLE, named)
    assert set(seen(tmp_path, monkeypatch, device, 2)) == saw


def test_slots_share_gpus_evenly(
    two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "4,5,6")  # torch counts two of them
    assert visible_gpus() == ("4", "5")
    assert seen(tmp_path, monkeypatch, "cuda", 4) == ["4", "4", "5", "5"]


def test_what_cannot_be_had_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    how: dict[str, Any] = {"page": PAGE}
    place = Place(tmp_path / "out", tmp_path / "runs")
    refused = [
        ({"device": "cuda:7"}, "Device 'cuda:7' was asked for"),
        ({"device": "tpu"}, "Unknown device 'tpu'"),
        ({"gpu_share": 0.5}, "goes with engine ray"),
    ]
    if importlib.util.find_spec("ray") is not None:
        refused += [
            ({"engine": "ray", "gpu_share": 1.5}, "above 0 and at most 1; got 1.5"),
            ({"engine": "ray", "device": "cuda:0"}, "Ray says which GPU it is"),
        ]
    for given, said in refused:
        with pytest.raises(ConfigError, match=said):
            run_jobs(planned(1), place, **how, **given)
    assert not list(tmp_path.iterdir())


# --- shards -----------------------------------------------------------------------------------


def test_shards_begin_with_their_own_jobs_and_end_with_all() -> None:
    jobs = planned(5)
    orders = [[job.seed for job in Shard(i, 2).order(jobs)] for i in (1, 2)]
    assert orders == [[0, 2, 4, 3, 1], [1, 3, 4, 2, 0]]
    assert Shard().order(jobs) == jobs and Shard.parse("2/3") == Shard(2, 3)


@pytest.mark.parametrize("text", ["", "1", "1/", "0/2", "3/2", "1/0", "-1/2", "a/b", "1/2/3"])
def test_no_such_shard(text: str) -> None:
    with pytest.raises(ConfigError, match="shard"):
        Shard.parse(text)


def test_a_job_that_failed_elsewhere_is_not_run_again(tmp_path: Path) -> None:
    (job,) = planned(1)
    place = Place(tmp_path, tmp_path / "runs")
    before = place.read(job)
    write_json(place.result(job), {**job.result(), "failure": "no luck", "wall_s": 1.0})
    assert place.done(job, before) and not place.done(job, place.read(job))


SHARD = """
import sys
from pathlib import Path
from test_machines import LABELS, Place, Shard, planned, run_jobs
folder = Path(sys.argv[1])
run_jobs(
    planned(int(sys.argv[3]), LABELS), Place(folder / "out", folder / "runs"),
    page="test_machines:count", shard=Shard.parse(sys.argv[2]), device="cpu",
)
"""
LABELS = ["labels@labels@realistic"]


def count(done: AttackResult) -> None:
    """In place of an attack's page: one more line for its run."""
    with Path(os.environ["COUNTED"]).open("a") as lines:
        lines.write(f"{done.folder.parents[1].name}\n")


def shard(folder: Path, named: str, jobs: int) -> subprocess.Popen[bytes]:
    """Start a shard of small jobs."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    own = {"PYTHONPATH": path, "COUNTED": str(folder / "counted")}
    words = [sys.executable, "-c", SHARD, str(folder), named, str(jobs)]
    return subprocess.Popen(words, env={**os.environ, **own})


@pytest.mark.slow
def test_two_shards_do_every_job_once(tmp_path: Path) -> None:
    jobs = planned(4, LABELS)
    both = [shard(tmp_path, f"{number}/2", len(jobs)) for number in (1, 2)]
    assert [process.wait(300) for process in both] == [0, 0]
    place = Place(tmp_path / "out", tmp_path / "runs")
    found = [one for job in jobs if (one := place.read(job))]
    assert [one["status"] for one in found] == ["complete"] * 4
    counted = (tmp_path / "counted").read_text().split()
    assert sorted(counted) == sorted(str(one["run"]) for one in found)  # each once
    hosts = [(tmp_path / "out" / "jobs" / f"{job.name}.log").read_text() for job in jobs]
    assert all(f"cpu, {VISIBLE}=" in text for text in hosts)
    assert not [path for path in (tmp_path / "out" / "jobs").iterdir() if path.is_dir()]


@pytest.mark.slow
def test_the_jobs_of_a_killed_shard_are_taken_up(tmp_path: Path) -> None:
    jobs = planned(3, LABELS)
    place = Place(tmp_path / "out", tmp_path / "runs")
    first = shard(tmp_path, "1/2", len(jobs))
    end = time.monotonic() + 120
    while not place.turn(jobs[0]).is_dir() and time.monotonic() < end:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)  # its job ends with it
    first.wait()
    assert place.read(jobs[0]) is None
    assert shard(tmp_path, "2/2", len(jobs)).wait(300) == 0
    assert [one["status"] for job in jobs if (one := place.read(job))] == ["complete"] * 3


def test_a_job_that_another_machine_took_over_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,), place = planned(1), Place(tmp_path, tmp_path / "runs")
    codes = []

    def run(*_: object) -> int:
        codes.append(executors.LOST)
        if len(codes) == 2:  # the other one has done it
            write_json(place.result(job), {**job.result(), "status": "complete"})
        return executors.LOST

    done = list(executors.in_turn([job], place, {job.name: None}, run, 1, lambda: None))
    assert done == [(job, 0)] and len(codes) == 2


def test_jobs_that_others_hold_come_last(tmp_path: Path) -> None:
    jobs, place = planned(3), Place(tmp_path, tmp_path / "runs")
    order: list[int] = []

    def run(job: BenchmarkJob, slot: int) -> int:
        order.append(job.seed)
        return 0

    with lease_folder(place.turn(jobs[0])):
        before = {job.name: None for job in jobs}
        list(executors.in_turn(jobs, place, before, run, 1, lambda: None))
    assert order == [1, 2, 0]


# --- a cluster --------------------------------------------------------------------------------


def test_what_a_job_takes_of_a_cluster() -> None:
    head, plain, two = {"CPU": 0.0}, {"CPU": 8.0}, {"CPU": 16.0, "GPU": 2.0}

    def needs(nodes: list[dict[str, float]], device: str, share: float | None = None) -> Any:
        return job_needs(nodes, Resources(device, 1, 16, share))

    assert needs([head, plain], "auto") == ({"num_cpus": 8, "num_gpus": 0}, 2)
    assert needs([head, plain, two], "cpu") == ({"num_cpus": 16, "num_gpus": 0}, 2)
    assert needs([head, plain, two], "auto") == ({"num_cpus": 8, "num_gpus": 1.0}, 4)
    assert needs([head, two], "cuda", 0.25) == ({"num_cpus": 2, "num_gpus": 0.25}, 16)
    for device, share in (("cuda", None), ("auto", 0.5)):
        with pytest.raises(ConfigError, match="no machine of the cluster has one"):
            needs([head, plain], device, share)
    with pytest.raises(ConfigError, match="Ray says which GPU"):
        run_on_ray([], Place(Path(), Path()), {}, Resources("cuda:1", 1, 1), {})


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two Ray nodes: a head without a GPU that does no job, and a node that says it has two."""
    pytest.importorskip("ray", reason="Ray is not installed: extra 'ray'")
    before = dict(os.environ)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 10**8}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, **small})
    try:
        made.add_node(num_cpus=2, num_gpus=2, **small)
        os.environ["RAY_ADDRESS"] = made.address
        yield made.address
    finally:
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.slow
def test_jobs_take_parts_of_gpus_that_the_head_has_not(cluster: str, tmp_path: Path) -> None:
    assert not torch.cuda.is_available()  # here; the cluster says that it has two
    jobs, place = planned(3), Place(tmp_path / "out", tmp_path / "runs")
    found = run_jobs(jobs, place, page=PAGE, engine="ray", device="auto", gpu_share=0.5)
    assert [one["status"] for one in found] == ["complete"] * 3
    logs = [(tmp_path / "out" / "jobs" / f"{job.name}.log").read_text() for job in jobs]
    saw = [log.partition(f"{VISIBLE}=")[2].split()[0] for log in logs]
    assert set(saw) <= {"0", "1"} and all(": cpu, " in log for log in logs)

    # the device is looked for where the job runs: here cuda is not refused before
    place = Place(tmp_path / "cuda", tmp_path / "cuda-runs")
    (failed,) = run_jobs(planned(1), place, page=PAGE, engine="ray", device="cuda")
    assert "sees 0 GPUs here" in str(failed.get("traceback")), failed
