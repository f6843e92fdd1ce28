"""Processes of jobs: several at once, each a child of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from fedre_privacy.core.lock import is_held

from .jobs import BenchmarkJob, Place

Arguments = Mapping[str, Sequence[str]]
"""Of each job's process by the job's name: its module, its settings file, and the rest."""

PARENT = "FEDRE_SWEEP_PARENT"
"""Environment variable by which a job knows the process that started it."""

RUNNING: set[subprocess.Popen[bytes]] = set()
"""Jobs under way in this process."""


def local(
    jobs: Sequence[BenchmarkJob], place: Place, arguments: Arguments, workers: int, threads: int
) -> Iterator[tuple[BenchmarkJob, int]]:
    """Run jobs as child processes of this one; yield each with its exit code.

    Args:
        workers: jobs at once. threads: of each.
    """

    def stop() -> None:
        for process in list(RUNNING):
            process.terminate()

    return in_turn(jobs, place, lambda job: call(arguments[job.name], threads), workers, stop)


def in_turn(
    jobs: Sequence[BenchmarkJob],
    place: Place,
    run: Callable[[BenchmarkJob], int],
    workers: int,
    stop: Callable[[], None],
) -> Iterator[tuple[BenchmarkJob, int]]:
    """Run jobs in threads, those that another process runs last; yield each with its exit code.

    Args:
        run: one job, to its exit code. stop: ends all jobs that run, after Ctrl-C or an error.
    """
    left = list(jobs)
    choosing = threading.Lock()

    def next_job() -> tuple[BenchmarkJob, int]:
        with choosing:
            job = next((job for job in left if not is_held(place.turn(job))), left[0])
            left.remove(job)
        return job, 0 if place.done(job) else run(job)

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


def call(arguments: Sequence[str], threads: int) -> int:
    """Run one job's process, its output beside its settings; return the exit code.

    The job watches this process and ends when it is gone, so that a killed sweep leaves nothing
    that writes into its folders. It uses `threads`, or what OMP_NUM_THREADS says if that is set.
    """
    log = Path(arguments[1]).with_suffix(".log")
    # -P: a folder named like this package in the working directory is not imported
    command = [sys.executable, "-P", "-m", *arguments]
    wanted = os.environ.get("OMP_NUM_THREADS", str(threads))
    own = {"OMP_NUM_THREADS": wanted, PARENT: str(os.getpid())}
    with log.open("w", encoding="utf-8") as handle:
        process = subprocess.Popen(command, stdout=handle, stderr=handle, env={**os.environ, **own})
        RUNNING.add(process)
        try:
            return process.wait()
        finally:
            RUNNING.discard(process)
