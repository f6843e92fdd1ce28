"""Sweeps on another machine, which shares no folder with this one and lacks this package."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedre_privacy.api.workflows import PAGE
from fedre_privacy.benchmarking import benchmark as benchmarking
from fedre_privacy.benchmarking import ray_cluster as cluster
from fedre_privacy.benchmarking.benchmark import BenchmarkResult
from fedre_privacy.benchmarking.jobs import Place
from fedre_privacy.benchmarking.sweep import WORKER
from fedre_privacy.benchmarking.variants import Benchmark, plan_jobs, read_sweep
from fedre_privacy.core.errors import DamagedInputError, MissingInputError
from fedre_privacy.core.files import write_yaml
from fedre_privacy.core.registry import allow_module_paths, import_plugins

PART = '''
"""A scheme of one's own, which needs a module beside it."""

from dataclasses import dataclass

import clustered_helper
from fedre_privacy.entanglement.rap import RAP


@dataclass(frozen=True, kw_only=True)
class Clustered(RAP):
    """RAP under another name."""

    def sample_weights(self, labels, num_classes, rng):
        return clustered_helper.same(super().sample_weights(labels, num_classes, rng))
'''
HELPER = "def same(value):\n    return value\n"
REPO = Path(__file__).parents[2]
SOURCES = ("fedre_privacy", "attacks", "defenses", "eval")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with images and a scheme of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clustered.py").write_text(PART)
    (tmp_path / "clustered_helper.py").write_text(HELPER)
    rng, labels = np.random.default_rng(0), np.arange(120) % 10
    images = rng.integers(0, 256, (120, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels)
    yield tmp_path
    for name in ("clustered", "clustered_helper"):
        sys.modules.pop(name, None)


def asked() -> Benchmark:
    """Two schemes, one of one's own, on images of one's own under a relative path."""
    import_plugins(["clustered"])
    allow_module_paths("clustered:Clustered")
    base = {
        "data": {"name": "npz", "path": "mine.npz"},
        "partition": {"name": "pra", "alpha": 0.5},
        "model": {"name": "cnn4", "dim": 16},
        "train": {"clients": 3, "rounds": 1, "batch_size": 8},
    }
    described = {
        "name": "tiny", "seeds": [0], "schemes": ["clustered:Clustered", "vap"],
        "attacks": ["labels@labels@realistic"],
    }  # fmt: skip
    return read_sweep(described, base, name="")


def benchmark(wanted: Benchmark, folder: Path, engine: str, **how: Any) -> BenchmarkResult:
    """Run a benchmark into folders of its own."""
    return benchmarking.benchmark(
        wanted, folder=folder / engine, runs=folder / f"{engine}-runs", engine=engine,
        page=PAGE, **how,
    )  # fmt: skip


def numbers(runs: Path) -> dict[str, bytes]:
    """What runs hold beside times and hashes of them."""
    kinds = ("*.safetensors", "clients.csv", "scores.csv", "config.yaml")
    found = (path for kind in kinds for path in runs.rglob(kind))
    return {str(path.relative_to(runs)): path.read_bytes() for path in sorted(found)}


# --- without Ray -----------------------------------------------------------------------------


def luggage(folder: Path) -> tuple[Any, Place, list[str], bytes]:
    """The first job of the benchmark, as it travels."""
    job = plan_jobs(asked())[0]
    place = Place(folder / "b", folder / "r")
    settings = folder / "b" / "jobs" / f"{job.name}.yaml"
    write_yaml(settings, job.plain())
    words = [WORKER, str(settings), str(place.folder), str(place.runs), "cpu", PAGE, *job.plugins()]
    return job, place, *cluster.job_payload(job, place, words)


@pytest.mark.slow
def test_a_job_brings_all_it_needs_and_comes_back_as_bytes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cluster.MOVED, "{}")
    job, place, words, content = luggage(here)
    data = cluster.pack({"mine.npz": Path("mine.npz")})
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # no images and no scheme here
    code, said, made = cluster.work(words, content, cluster.versions(), "mine.npz", data)
    assert code == 0, said
    cluster.unload(job, place, made)
    found = place.read(job)
    assert found is not None and found["status"] == "complete"
    run = place.runs / job.training.run_name
    before = {path.name for path in run.iterdir()}
    trained = (run / "models" / "r0001.safetensors").stat()
    shutil.rmtree(run / "attacks")

    monkeypatch.chdir(here)
    _, _, words, content = luggage(here)
    monkeypatch.chdir(elsewhere)
    code, said, made = cluster.work(words, content, cluster.versions(), "mine.npz", data)
    assert code == 0, said
    cluster.unload(job, place, made)  # a run that is complete travels, and is kept
    assert {path.name for path in run.iterdir()} == before
    assert (run / "models" / "r0001.safetensors").stat().st_mtime_ns == trained.st_mtime_ns
    assert sorted(path.name for path in place.runs.iterdir()) == [run.name]


def test_a_machine_with_other_versions_does_no_job(here: Path) -> None:
    _, _, words, content = luggage(here)
    code, said, made = cluster.work(words, content, {"torch": "1.0"})
    assert (code, made) == (1, b"")
    assert "torch" in said and "not {'torch': '1.0'}: its numbers could be others" in said


def test_code_travels_with_modules_of_ones_own_and_what_lies_beside(here: Path) -> None:
    asked()
    (here / "code").mkdir()
    import clustered  # noqa: F401

    cluster.copy_code(here / "code", ["clustered"])
    found = {str(path.relative_to(here / "code")) for path in (here / "code").rglob("*.py")}
    assert {"clustered.py", "clustered_helper.py", "fedre_privacy/attacks/base.py",
            "fedre_privacy/benchmarking/worker.py",
            "fedre_privacy/eval/metrics/psnr.py"} <= found  # fmt: skip


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "runs/../../x"])
def test_files_that_lead_elsewhere_are_refused(here: Path, name: str) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    (here / "in").mkdir()
    with contextlib.suppress(DamagedInputError):
        cluster.unpack(made.getvalue(), here / "in" / "place")
    assert not [path for path in here.rglob("x") if here / "in" / "place" not in path.parents]


# --- a cluster of two ------------------------------------------------------------------------

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: extra 'ray'"
)


def _own_mounts() -> bool:
    """Whether a process may hide folders from itself."""
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster: a machine that does no job, and one that sees neither package nor files."""
    if shutil.which("unshare") is None or not _own_mounts():
        pytest.skip("this system lets no process hide folders from itself")
    room, port = tmp_path_factory.mktemp("cluster"), _free_port()
    ray = str(Path(sys.executable).with_name("ray"))
    common = ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000", "--block"]
    hidden = [tmp_path_factory.getbasetemp(), *(REPO / name for name in SOURCES)]
    hide = "; ".join(f"mount -t tmpfs none {path}" for path in hidden)
    environment = {
        **os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    commands = [
        [ray, "start", "--head", f"--port={port}", "--num-cpus=0", *common,
         "--include-dashboard=false"],
        ["unshare", "--mount", "sh", "-c",
         f"{hide}; cd /; exec {ray} start --address=127.0.0.1:{port} --num-cpus=1 "
         + " ".join(common)],
    ]  # fmt: skip
    parties = []
    try:
        for number, command in enumerate(commands):
            log = (room / f"{number}.log").open("wb")
            parties.append(
                subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )
            until = time.monotonic() + 120
            while b"--block" not in (room / f"{number}.log").read_bytes():
                assert time.monotonic() < until and parties[-1].poll() is None
                time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        for party in reversed(parties):
            party.terminate()
        for party in reversed(parties):
            try:
                party.wait(20)
            finally:
                with_group(party.pid)


def with_group(leader: int) -> None:
    """Kill what a process started, in its session."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Killer(threading.Thread):
    """Kills processes in which a job runs, so many."""

    def __init__(self, job: str, victims: int) -> None:
        super().__init__(daemon=True)
        self.job, self.victims = job, victims

    def run(self) -> None:
        seen: set[int] = set()
        while self.victims:
            for place in Path(tempfile.gettempdir()).glob(
                f"fedre-job-*/benchmark/jobs/{self.job}.yaml"
            ):
                room = place.parents[2]
                for path in Path("/proc").glob("[0-9]*"):
                    try:
                        mine = os.readlink(path / "cwd") == str(room)
                        words = (path / "cmdline").read_bytes()
                    except OSError:
                        continue
                    pid = int(path.name)
                    if mine and b"ray::" in words and pid not in seen and self.victims:
                        seen.add(pid)
                        self.victims -= 1
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Name the cluster that engines join."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    return lambda address: monkeypatch.setenv(cluster.ADDRESS, address)


@needs_ray
@pytest.mark.slow
def test_killed_processes_and_workers_change_no_number(
    here: Path, address: str, joined: Callable[[str], None]
) -> None:
    joined(address)
    wanted = asked()
    one, two = (job.name for job in wanted.jobs)
    killers = [Killer(one, 1), Killer(two, 2)]
    for killer in killers:
        killer.start()
    far = benchmark(wanted, here, "ray")
    assert [killer.victims for killer in killers] == [0, 0]
    near = benchmark(wanted, here, "local")
    assert not near.summary.empty and near.failures() == far.failures() == []
    pd.testing.assert_frame_equal(near.summary, far.summary)
    assert numbers(here / "ray-runs") == numbers(here / "local-runs") != {}


@needs_ray
@pytest.mark.slow
def test_a_job_that_dies_again_and_again_is_recorded_as_failed(
    here: Path, address: str, joined: Callable[[str], None]
) -> None:
    joined(address)
    wanted = asked()
    Killer(wanted.jobs[0].name, cluster.TRIES).start()
    made = benchmark(wanted, here, "ray")
    (failure,) = made.failures()
    assert "the process ended with code -9: Given up after 3 times." in failure
    again = benchmark(wanted, here, "ray", retry=True)
    assert again.failures() == []


@needs_ray
@pytest.mark.slow
def test_an_address_without_a_cluster_is_refused(here: Path, joined: Callable[[str], None]) -> None:
    joined(f"127.0.0.1:{_free_port()}")
    with pytest.raises(MissingInputError, match="No Ray cluster answers at RAY_ADDRESS=127"):
        benchmark(asked(), here, "ray")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_is_tried_before_ray_tries_it_for_minutes(scheme: str) -> None:
    with pytest.raises(OSError):
        cluster._knock(f"{scheme}127.0.0.1:{_free_port()}")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        cluster._knock(f"{scheme}127.0.0.1:{listening.getsockname()[1]}")
    cluster._knock("auto")  # Ray's own words are left to it
