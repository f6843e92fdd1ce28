"""Processes of jobs: several at once, each a child of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.lock import is_leased
from fedre_privacy.runs.device import VISIBLE, choose_device, visible_gpus

from .jobs import BenchmarkJob, Place
from .results import JobResult

Arguments = Mapping[str, Sequence[str]]
"""Of each job's process by the job's name: its module, its settings file, and the rest."""
Before = Mapping[str, JobResult | None]
"""Of each job by its name: the result that it had when the benchmark began."""

PARENT = "FEDRE_SWEEP_PARENT"
"""Environment variable by which a job knows the process that started it."""
LOST = 75
"""Exit code of a job that another machine took over; it is waited for."""

RUNNING: set[subprocess.Popen[bytes]] = set()
"""Jobs under way in this process."""


@dataclass(frozen=True)
class Resources:
    """What the jobs of a benchmark may use.

    Args:
        device: auto, cpu, cuda or cuda:N, chosen where a job runs.
        workers: jobs at once on this machine. threads: of each.
        gpu_share: part of a GPU that a job takes on a cluster, in (0, 1]; None: not given.
    """

    device: str
    workers: int
    threads: int
    gpu_share: float | None = None


def local(
    jobs: Sequence[BenchmarkJob],
    place: Place,
    arguments: Arguments,
    resources: Resources,
    before: Before,
) -> Iterator[tuple[BenchmarkJob, int]]:
    """Run jobs as child processes of this one; yield each with its exit code.

    Each of so many jobs at once has a slot, from 0 on. Where they run on ``cuda`` a job sees one
    GPU: that with the number of its slot, modulo their count.

    Raises:
        ConfigError: there is no such device, or a part of a GPU is asked for.
    """
    if resources.gpu_share is not None:
        raise ConfigError(
            "A part of a GPU for each job goes with engine ray.",
            next_step="On this machine jobs at once share its GPUs evenly: give --jobs N alone.",
        )
    device = choose_device(resources.device)
    gpus = visible_gpus() if device.type == "cuda" and device.index is None else ()

    def run(job: BenchmarkJob, slot: int) -> int:
        own: dict[str, str] = {VISIBLE: gpus[slot % len(gpus)]} if gpus else {}
        return call(arguments[job.name], resources.threads, own)

    def stop() -> None:
        for process in list(RUNNING):
            process.terminate()

    return in_turn(jobs, place, before, run, resources.workers, stop)


def in_turn(
    jobs: Sequence[BenchmarkJob],
    place: Place,
    before: Before,
    run: Callable[[BenchmarkJob, int], int],
    workers: int,
    stop: Callable[[], None],
) -> Iterator[tuple[BenchmarkJob, int]]:
    """Run jobs in threads, those that another process runs last; yield each with its exit code.

    Args:
        before: a job whose result is another one by now was run by another benchmark.
        run: one job in a slot of ``range(workers)``, to its exit code.
        stop: ends all jobs that run, after Ctrl-C or an error.
    """
    left = list(jobs)
    choosing = threading.Lock()
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(workers):
        slots.put(slot)

    def next_job() -> tuple[BenchmarkJob, int]:
        with choosing:
            job = next((job for job in left if not is_leased(place.turn(job))), left[0])
            left.remove(job)
        slot = slots.get()
        try:
            code = LOST
            while code == LOST and not place.done(job, before[job.name]):
                code = run(job, slot)
        finally:
            slots.put(slot)
        return job, 0 if code == LOST else code

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(next_job) for _ in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            stop()
            raise


def call(arguments: Sequence[str], threads: int, environment: Mapping[str, str]) -> int:
    """Run one job's process, its output beside its settings; return the exit code.

    The job watches this process and ends when it is gone, so that a killed sweep leaves nothing
    that writes into its folders. It uses `threads`, or what OMP_NUM_THREADS says if that is set.

    Args:
        environment: variables of the process beside those of this one.
    """
    log = Path(arguments[1]).with_suffix(".log")
    # -P: a folder named like this package in the working directory is not imported
    command = [sys.executable, "-P", "-m", *arguments]
    wanted = os.environ.get("OMP_NUM_THREADS", str(threads))
    own = {"OMP_NUM_THREADS": wanted, PARENT: str(os.getpid()), **environment}
    with log.open("a", encoding="utf-8") as handle:  # another machine's job may write it too
        process = subprocess.Popen(command, stdout=handle, stderr=handle, env={**os.environ, **own})
        RUNNING.add(process)
        try:
            return process.wait()
        finally:
            RUNNING.discard(process)
