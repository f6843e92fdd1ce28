"""How the processes of jobs are run: children of this process, or tasks of a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from fedre_privacy.core.lock import is_held

from . import cluster
from .jobs import Job, Place
from .parcels import PARENT

Arguments = Mapping[str, Sequence[str]]
"""Of each job's process by the job's name: its module, its settings file, and the rest."""


def _local(
    jobs: Sequence[Job], place: Place, arguments: Arguments, workers: int, threads: int
) -> Iterator[tuple[Job, int]]:
    """Child processes of this one, so many at once; what another process does comes last."""
    left = list(jobs)
    choosing = threading.Lock()

    def next_one() -> tuple[Job, int]:
        with choosing:
            job = next((job for job in left if not is_held(place.turn(job))), left[0])
            left.remove(job)
        return job, 0 if place.done(job) else call(arguments[job.name], threads)

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(next_one) for _ in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            for process in list(RUNNING):  # Ctrl-C leaves no job behind
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


ENGINES = {"local": _local, "ray": cluster.run}


RUNNING: set[subprocess.Popen[bytes]] = set()
"""Jobs under way in this process."""


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
