"""Jobs in order of value, several at once, in the minutes given; their results as files.

A job is a command in a process of its own, with a log. Its result is one JSON file, which is the
only state: a job whose file says that it is done is never done again, here or elsewhere.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
DONE, CUT, FAILED = "done", "cut", "failed"
KEPT_LINES = 200
"""Lines of a job's log that its result keeps, the last ones."""
LOOK_S = 0.2
SLACK_S = 2.0
"""A job is begun although so much less time is left than it is expected to take."""


@dataclass(frozen=True)
class Job:
    """One command and what is expected of it.

    Args:
        name: of its result file.
        kind: jobs of one kind take about as long.
        minutes: that it is expected to take where none of its kind has been timed.
        words: behind ``python``.
        asked: what its number should be, in words.
        alone: whether nothing may run beside it, since it measures speed.
        after: a job that must be done before; empty: none.
    """

    name: str
    kind: str
    minutes: float
    words: tuple[str, ...]
    asked: str = ""
    alone: bool = False
    after: str = ""


class Results:
    """A folder of results, a JSON file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path:
        """Where the result of a job lies."""
        return self.folder / f"{name}.json"

    def read(self, name: str) -> dict[str, Any] | None:
        """The result of a job; None where there is none."""
        path = self.file(name)
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def write(self, name: str, result: Mapping[str, Any]) -> None:
        """Replace the file of a result in one rename."""
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self.file(name).with_suffix(".part")
        beside.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.file(name))

    def done(self, name: str) -> bool:
        """Whether a job has ended well."""
        found = self.read(name)
        return found is not None and found["status"] == DONE

    def all(self) -> dict[str, dict[str, Any]]:
        """Every result by its job's name."""
        names = sorted(path.stem for path in self.folder.glob("*.json"))
        return {name: found for name in names if (found := self.read(name)) is not None}

    def seconds(self, kind: str, on: str) -> float | None:
        """The longest that a job of a kind has taken on a machine; None: not known.

        Args:
            on: the machine's GPU, or its processor where it has none.
        """
        took = [
            float(one["seconds"])
            for one in self.all().values()
            if one["status"] == DONE and one["kind"] == kind and unit_of(one["machine"]) == on
        ]
        return max(took, default=None)


def machine(commit: str = "") -> dict[str, str]:
    """What numbers of this machine hold for."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    return {
        "gpu": gpu,
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit or _said("git", "-C", str(ROOT), "rev-parse", "HEAD") or "unknown",
    }


def unit_of(machine: Mapping[str, str]) -> str:
    """The GPU that a result is of, or the processor."""
    return machine["gpu"] or machine["processor"]


def _said(*words: str) -> str:
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip().partition("\n")[0]


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


@dataclass
class Running:
    """A process of a job."""

    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    out: Path
    started: float


class Scheduler:
    """Starts jobs, watches them, and writes their results.

    Args:
        results: where results lie and go.
        scratch: folder of logs and of what jobs write themselves.
        environment: laid over this process's own.
        on: see `machine`.
    """

    def __init__(
        self,
        results: Results,
        scratch: Path,
        environment: Mapping[str, str],
        on: Mapping[str, str],
        say: Callable[[str], None] = print,
    ) -> None:
        self.results, self.scratch, self.on, self.say = results, scratch, on, say
        self.environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "MPLBACKEND": "Agg",
            **environment,
        }
        self.running: list[Running] = []
        self.failed = 0

    def expected(self, job: Job) -> float:
        """Seconds that a job is expected to take here."""
        known = self.results.seconds(job.kind, unit_of(self.on))
        return 60 * job.minutes if known is None else known

    def work(self, jobs: Sequence[Job], ends: float, most: int) -> None:
        """Do what is not done, in order, each job begun only if its time is left.

        Args:
            ends: when everything has to be over (`time.monotonic`).
            most: jobs at once.
        """
        waiting = [job for job in jobs if not self.results.done(job.name)]
        try:
            while waiting or self.running:
                self._begin(waiting, ends, most)
                for one in list(self.running):
                    code = one.process.poll()
                    if code is not None or time.monotonic() > ends:
                        self._finish(one, code)
                if self.running:
                    time.sleep(LOOK_S)
        finally:
            for one in list(self.running):
                self._finish(one, None)

    def _begin(self, waiting: list[Job], ends: float, most: int) -> None:
        for job in list(waiting):
            busy = [one.job for one in self.running]
            if len(busy) >= most or any(one.alone for one in busy) or (job.alone and busy):
                return
            if job.after and not self.results.done(job.after):
                if job.after not in [one.name for one in (*waiting, *busy)]:
                    waiting.remove(job)
                    self.say(f"{job.name}: not begun, {job.after} is not done")
                continue
            waiting.remove(job)
            needed, left = self.expected(job), ends - time.monotonic()
            if needed > left + SLACK_S:
                self.say(f"{job.name}: not begun, {needed:.0f} s expected, {max(left, 0):.0f} left")
                continue
            self._start(job)

    def _start(self, job: Job) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        log, out = self.scratch / f"{job.name}.log", self.scratch / f"{job.name}.json"
        out.unlink(missing_ok=True)
        words = [word.replace("{out}", str(out)) for word in job.words]
        with log.open("wb") as handle:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, env=self.environment, stdout=handle,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.running.append(Running(job, process, log, out, time.monotonic()))

    def _finish(self, one: Running, code: int | None) -> None:
        """Write what a job came to; one that is not over is ended."""
        if code is None:
            one.process.kill()
            one.process.wait()
        self.running.remove(one)
        lines = one.log.read_text(encoding="utf-8", errors="replace").splitlines()
        status = CUT if code is None else FAILED if code else DONE
        seconds = round(time.monotonic() - one.started, 1)
        found = json.loads(one.out.read_text(encoding="utf-8")) if one.out.is_file() else {}
        written = one.out.is_file() and status == DONE
        result = {
            "job": one.job.name,
            "kind": one.job.kind,
            "asked": one.job.asked,
            "status": status,
            "command": shlex.join(["python", *(_placeless(word) for word in one.job.words)]),
            "seconds": seconds,
            "beside": len(self.running),
            "machine": dict(self.on),
            **found,
            **({} if written else {"lines": lines[-KEPT_LINES:]}),
        }
        self.results.write(one.job.name, result)
        self.failed += status == FAILED
        last = f": {lines[-1]}" if lines and status == FAILED else ""
        self.say(f"{one.job.name}: {status} in {seconds:.0f} s{last}")


def _placeless(word: str) -> str:
    """A word of a command, also of the form KIND:PATH, without the folders of one machine."""
    kind, colon, path = word.rpartition(":")
    return f"{kind}{colon}{Path(path).name}" if path.startswith("/") else word
