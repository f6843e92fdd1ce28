"""Jobs as tasks of a Ray cluster, whose machines need share no folder with this one.

Ray's runtime environment takes this package and modules of one's own there. A job takes along its
settings, its data, and its run where that was trained before; what it writes comes back.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import socket
import sys
import sysconfig
import tarfile
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedre_privacy.core import files
from fedre_privacy.core.errors import ConfigError, DamagedInputError, MissingInputError
from fedre_privacy.core.lock import lease_folder
from fedre_privacy.data.base import MOVED, at_hand
from fedre_privacy.runs.device import parse_device
from fedre_privacy.runs.folder import COMPLETE, status_of

from .executors import LOST, Arguments, Before, Resources, in_turn
from .jobs import BenchmarkJob, Place

PACKAGE = __name__.partition(".")[0]
TRIES = 3
"""Times that a job is begun whose process or machine dies."""
ADDRESS = "RAY_ADDRESS"
KNOCK = 10.0
"""Seconds within which a cluster must take a connection."""
DIED = -9
"""Code of a job that Ray gave up, as of a process that was killed."""
BENCHMARK, RUNS, DATA, LOG = "benchmark", "runs", "data", "job.log"

Answer = tuple[int, str, bytes]
"""Of a job: its exit code, its output, and an archive of what it wrote."""


def run(
    jobs: Sequence[BenchmarkJob],
    place: Place,
    arguments: Arguments,
    resources: Resources,
    before: Before,
) -> Iterator[tuple[BenchmarkJob, int]]:
    """Run jobs on the cluster that RAY_ADDRESS names, or on one that is started on this machine.

    The cluster decides how many jobs fit. Where it has GPUs a job takes a part of one, unless
    device is cpu, and chooses its device when it runs; this machine needs none.

    Raises:
        ConfigError: a device by number, or a share out of range; when iterated: no GPU there.
        MissingInputError: when iterated: there is no cluster at that address.
    """
    device, share = parse_device(resources.device), resources.gpu_share
    if device is not None and device.index is not None:
        raise ConfigError(
            f"Device '{resources.device}' was asked for; on a cluster Ray says which GPU it is.",
            next_step="Use --device cuda, or auto.",
        )
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"A job takes a part of a GPU above 0 and at most 1; got {share:g}.")
    return _run(jobs, place, arguments, resources, before)


def _run(
    jobs: Sequence[BenchmarkJob],
    place: Place,
    arguments: Arguments,
    resources: Resources,
    before: Before,
) -> Iterator[tuple[BenchmarkJob, int]]:
    ray = _connect({name for job in jobs for name in job.plugins()})
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        needs, most = job_needs(nodes, resources)
        remote = ray.remote(**needs, max_calls=1, max_retries=TRIES - 1)
        data = {given: ray.put(pack({Path(given).name: at_hand(given)}))
                for given in {data_path(job) for job in jobs} if given}  # fmt: skip
        sent: list[Any] = []

        def call(job: BenchmarkJob, slot: int) -> int:
            lost = threading.Event()
            with lease_folder(place.turn(job), lost.set):
                if place.done(job, before[job.name]):  # by another benchmark meanwhile
                    return 0
                words, content = job_payload(job, place, arguments[job.name])
                given = data_path(job)
                ref = remote(work).remote(words, content, versions(), given, data.get(given))
                sent.append(ref)
                try:
                    code, said, made = ray.get(ref)
                    if lost.is_set():  # another machine took the job over
                        return LOST
                    unload(job, place, made)
                except ray.exceptions.RayError as error:
                    said = f"{' '.join(str(error).split())[:1000]}\nGiven up after {TRIES} times."
                    code = DIED
                files.write_text(place.folder / "jobs" / f"{job.name}.log", said)
                return int(code)

        def stop() -> None:
            for ref in sent:
                ray.cancel(ref, force=True)

        yield from in_turn(jobs, place, before, call, most, stop)
    finally:
        ray.shutdown()


def job_needs(
    nodes: Sequence[Mapping[str, float]], resources: Resources
) -> tuple[dict[str, float], int]:
    """What a job takes of a cluster, as Ray names it, and how many jobs to send at a time.

    A job with a part of a GPU takes as large a part of its machine's cores at most, so that cores
    do not keep others from the GPU.

    Args:
        nodes: of each machine what it has, ``CPU`` and ``GPU``.

    Raises:
        ConfigError: a GPU is asked for, and no machine has one.
    """
    share = resources.gpu_share or 1.0
    with_gpu = [node for node in nodes if node.get("GPU", 0) > 0]
    if resources.device == "cpu" or not with_gpu:
        if resources.device != "cpu" and (resources.device == "cuda" or resources.gpu_share):
            raise ConfigError(
                "A GPU was asked for; no machine of the cluster has one.",
                next_step="Use --device cpu, or join a machine with one (ray start --address).",
            )
        cores = [int(node.get("CPU", 0)) for node in nodes]
        each = max(1, min(resources.threads, max(cores)))
        return {"num_cpus": each, "num_gpus": 0}, 2 * max(1, sum(own // each for own in cores))
    beside = min(int(node.get("CPU", 0) * share / node["GPU"]) for node in with_gpu)
    each = max(1, min(resources.threads, beside))
    fit = sum(int(node["GPU"] / share) for node in with_gpu)
    return {"num_cpus": each, "num_gpus": share}, 2 * max(1, fit)


def _connect(plugins: Iterable[str]) -> Any:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get(ADDRESS)
    try:
        _knock(address or "")
        with tempfile.TemporaryDirectory() as name:
            copy_code(Path(name), plugins)
            ray.init(
                address=None if address else "local",  # not a cluster that another left behind
                runtime_env={"working_dir": name}, ignore_reinit_error=True, log_to_driver=False,
                logging_level="ERROR",
            )  # fmt: skip
    except (OSError, RuntimeError, ValueError) as error:
        raise MissingInputError(
            f"No Ray cluster answers at {ADDRESS}={address}: {' '.join(str(error).split())[:300]}",
            next_step=f"Start one (ray start --head), or unset {ADDRESS} to use this machine.",
        ) from None
    return ray


def _knock(address: str) -> None:
    """Find out at once whether anything listens at HOST:PORT; Ray tries for many minutes.

    Raises:
        OSError: nothing does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=KNOCK).close()


def copy_code(folder: Path, plugins: Iterable[str]) -> None:
    """Copy this package, and modules of one's own with what was imported from beside them."""
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    packages = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    for top in {name.partition(".")[0] for name in plugins}:
        packages.append(top)
        own = Path(str(sys.modules[top].__file__)).resolve()
        for module in list(sys.modules.values()):
            path = Path(getattr(module, "__file__", None) or "").resolve()
            beside = path.parent == own.parent and own.parent not in installed
            if path == own or (beside and path.is_file()):
                shutil.copy(path, folder)
    for name in packages:
        for path in getattr(sys.modules[name], "__path__", ()):
            shutil.copytree(path, folder / name.replace(".", "/"), dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip


def versions() -> dict[str, str]:
    """What decides about numbers beside this package; another machine must have the same."""
    return {"python": sysconfig.get_python_version(),
            **{name: version(name) for name in ("torch", "numpy")}}  # fmt: skip


def data_path(job: BenchmarkJob) -> str:
    """The path that a job's settings name for its data; empty where they name none."""
    return str(getattr(job.training.data, "path", None) or "")


def job_payload(job: BenchmarkJob, place: Place, words: Sequence[str]) -> tuple[list[str], bytes]:
    """What a job does there, and an archive of its settings, and of its run if that is complete.

    Args:
        words: of its process on this machine, see `processes.Arguments`.
    """
    worker, settings, _, _, *rest = words
    run, file = place.runs / job.training.run_name, f"{BENCHMARK}/jobs/{job.name}.yaml"
    before = {f"{RUNS}/{run.name}": run} if status_of(run) == COMPLETE else {}
    return [worker, file, BENCHMARK, RUNS, *rest], pack({file: Path(settings), **before})


def work(
    words: Sequence[str],
    content: bytes,
    needed: Mapping[str, str],
    given: str = "",
    data: bytes | None = None,
) -> Answer:
    """Do a job in this process, in a folder that is removed afterwards.

    Args:
        words: the module whose `main` does the job, and its arguments; paths are relative.
        content: see `job_payload`. needed: versions that this machine must have.
        given: the path that settings name for data. data: an archive of what lies there.
    """
    if versions() != needed:
        here = f"{os.uname().nodename} has {versions()}, not {dict(needed)}"
        return 1, f"{here}: its numbers could be others.", b""
    worker, *arguments = words
    with tempfile.TemporaryDirectory(prefix="fedre-job-") as name, chdir(name):
        room = Path(name)
        unpack(content, room)
        if data is not None:
            unpack(data, room / DATA)
            os.environ[MOVED] = json.dumps({given: str(room / DATA / Path(given).name)})
        with (room / LOG).open("w", encoding="utf-8") as log:
            with redirect_stdout(log), redirect_stderr(log):
                try:
                    code = importlib.import_module(worker).main(*arguments)
                except Exception:
                    traceback.print_exc()
                    code = 1
        made = {part: room / part for part in (BENCHMARK, RUNS) if (room / part).exists()}
        return code, (room / LOG).read_text(encoding="utf-8", errors="replace"), pack(made)


def pack(paths: Mapping[str, Path]) -> bytes:
    """An archive of files and folders under other names."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, path in paths.items():
            archive.add(path, name)
    return made.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Write the files of an archive below a folder.

    Raises:
        DamagedInputError: a path leads elsewhere.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise DamagedInputError(f"A job's archive is refused: {error}.") from None


def unload(job: BenchmarkJob, place: Place, made: bytes) -> None:
    """Put what a job made where it would be, had it run here; its result comes last.

    A run that was complete keeps its files, and gets those of new attacks.

    Raises:
        DamagedInputError: a path leads elsewhere.
    """
    place.runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=place.runs) as name:
        if made:
            unpack(made, Path(name))
        run, own = place.runs / job.training.run_name, Path(name) / RUNS / job.training.run_name
        if own.is_dir() and status_of(run) == COMPLETE:
            for path in sorted(path for path in own.rglob("*") if path.is_file()):
                target = run / path.relative_to(own)
                if not target.is_file() or target.read_bytes() != path.read_bytes():
                    files.write_bytes(target, path.read_bytes())
        elif own.is_dir():
            shutil.rmtree(run, ignore_errors=True)
            own.rename(run)
        result = Path(name) / BENCHMARK / "jobs" / place.result(job).name
        if result.is_file():
            files.write_bytes(place.result(job), result.read_bytes())
