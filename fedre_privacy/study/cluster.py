"""Jobs as tasks of a Ray cluster, whose machines need share no folder with this one.

A job takes along its settings, this package, modules of one's own, its data, and its run where that
was trained before; what it writes comes back as bytes.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fedre_privacy.core import files
from fedre_privacy.core.errors import MissingExtraError, MissingInputError
from fedre_privacy.core.lock import held, is_held
from fedre_privacy.data.base import at_hand

from . import there
from .jobs import Job, Place
from .parcels import code, data_of, pack, take_up, versions

TRIES = 3
"""Times that a job is begun whose process, worker or machine dies."""
ADDRESS = "RAY_ADDRESS"
KNOCK = 10.0
"""Seconds within which a cluster must take a connection."""
DIED = -9
"""Code of a job whose worker died, as of a process that was killed."""


def run(
    jobs: Sequence[Job],
    place: Place,
    arguments: Mapping[str, Sequence[str]],
    workers: int,
    threads: int,
) -> Iterator[tuple[Job, int]]:
    """Run jobs on the cluster that RAY_ADDRESS names, or on one that is started on this machine.

    Args:
        workers: ignored: the cluster decides how many jobs fit. threads: cores of a job.

    Raises:
        MissingExtraError: Ray is not installed.
        MissingInputError: there is no cluster at that address.
    """
    ray = _connected()
    try:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = [int(resources.get("CPU", 0)) for resources in alive]
        each = max(1, min(threads, max(cores)))
        send = _sender(ray, jobs, place, arguments, each)
        fit = sum(own // each for own in cores)
        yield from _Round(ray, place, send, deque(jobs), most=2 * max(1, fit)).answers()
    finally:
        ray.cloudpickle.unregister_pickle_by_value(there)
        ray.shutdown()


def _connected() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            "Engine 'ray' needs the package ray, which is not installed.",
            next_step="pip install 'fedre-privacy[ray]', or leave --engine out to use this "
            "machine alone.",
        ) from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get(ADDRESS)
    try:
        _knock(address or "")
        ray.init(
            address=None if address else "local",  # not a cluster that another left behind
            ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR",
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError) as error:
        raise MissingInputError(
            f"No Ray cluster answers at {ADDRESS}={address}: {' '.join(str(error).split())[:300]}",
            next_step=f"Start one (ray start --head), or unset {ADDRESS} to use this machine.",
        ) from None
    ray.cloudpickle.register_pickle_by_value(there)  # a machine may lack this package
    return ray


def _knock(address: str) -> None:
    """Find out at once whether anything listens at HOST:PORT; Ray tries for many minutes.

    Raises:
        OSError: nothing does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=KNOCK).close()


Send = Callable[[Job], Any]


def _sender(
    ray: Any, jobs: Sequence[Job], place: Place, arguments: Mapping[str, Sequence[str]], each: int
) -> Send:
    """What hands a job to the cluster; what jobs share is handed over once."""
    plugins = sorted({name for job in jobs for name in job.plugins()})
    shared, needed = ray.put(code(plugins)), versions()
    data = {
        given: ray.put(there.tree(at_hand(given)))
        for given in sorted({given for job in jobs for given in data_of(job)})
    }
    gpus = int(any(words[4].startswith("cuda") for words in arguments.values()))
    task = ray.remote(num_cpus=each, num_gpus=gpus, max_retries=0)(there.work)

    def send(job: Job) -> Any:
        parcel = pack(job, place, arguments[job.name], each)
        return task.remote(parcel, shared, needed, *(data[given] for given in data_of(job)))

    return send


@dataclass
class _Out:
    """A job that is with the cluster, and the lock on its turn."""

    job: Job
    tries: int
    lock: ExitStack


@dataclass
class _Round:
    """Jobs that wait, and those that are with the cluster: never more than `most`."""

    ray: Any
    place: Place
    send: Send
    left: deque[Job]
    most: int

    def answers(self) -> Iterator[tuple[Job, int]]:
        """Every job with the code of its process, as they end."""
        out: dict[Any, _Out] = {}
        try:
            while self.left or out:
                while self.left and len(out) < self.most:
                    one = self._taken()
                    if self.place.done(one.job):  # another benchmark may have done it meanwhile
                        one.lock.close()
                        yield one.job, 0
                        continue
                    out[self.send(one.job)] = one
                if not out:
                    continue
                (ready, *_), _ = self.ray.wait(list(out))
                one = out.pop(ready)
                answer = self._answer(ready)
                if answer["code"] < 0 and one.tries < TRIES:
                    one.tries += 1
                    out[self.send(one.job)] = one
                    continue
                self._take_up(one, answer)
                yield one.job, answer["code"]
        finally:
            for ref, one in out.items():  # Ctrl-C leaves no job behind
                self.ray.cancel(ref, force=True)
                one.lock.close()

    def _taken(self) -> _Out:
        job = next((one for one in self.left if not is_held(self.place.turn(one))), self.left[0])
        self.left.remove(job)
        lock = ExitStack()
        lock.enter_context(held(self.place.turn(job), wait=True))
        return _Out(job, 1, lock)

    def _answer(self, ref: Any) -> there.Answer:
        try:
            answer: there.Answer = self.ray.get(ref)
            return answer
        except self.ray.exceptions.RayError as error:
            said = f"Ray: {' '.join(str(error).split())[:1000]}"
            return there.Answer(code=DIED, said=said, files={})

    def _take_up(self, one: _Out, answer: there.Answer) -> None:
        said = answer["said"]
        if answer["code"] < 0:
            said += f"\nGiven up after {one.tries} times."
        log = self.place.folder / "jobs" / f"{one.job.name}.log"
        files.write_text(log, said)
        take_up(one.job, self.place, answer["files"])
        one.lock.close()
