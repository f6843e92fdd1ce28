"""Many trainings and attacks: planned first, each job in its own process, resumable.

A job is one training and the attacks on it. Its result lies on disk; a job that failed keeps its
first traceback and is shown, never averaged away.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedre_privacy.core import files
from fedre_privacy.core.config import merge
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    FedreError,
    IncompatibleError,
    MissingExtraError,
)
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.lock import held, is_held, remove_left, remove_stale
from fedre_privacy.core.schema import check
from fedre_privacy.play.attack import AttackResult, attack
from fedre_privacy.play.fit import check_ahead, only_recorded
from fedre_privacy.runs.folder import COMPLETE, FAILED, status_of
from fedre_privacy.runs.resolving import resolve_attack, resolve_training
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.runs.training import train

from .results import Attacked, JobResult, MeasureRow, Trained

Values = Mapping[str, Any]


REFUSED = "refused"
PARENT = "FEDRE_SWEEP_PARENT"
"""Environment variable by which a job knows the process that started it."""


@dataclass(frozen=True)
class Job:
    """One training and the attacks on it.

    Args:
        label: what is compared; jobs of one label differ in their seed alone.
        seed: of the training.
    """

    label: str
    seed: int
    training: TrainSettings
    attacks: tuple[AttackSettings, ...]

    def plain(self) -> dict[str, Any]:
        """The job as written to disk."""
        return {
            "label": self.label,
            "seed": self.seed,
            "training": self.training.plain(),
            "attacks": [settings.plain() for settings in self.attacks],
        }

    def plugins(self) -> list[str]:
        """Modules of one's own that the process of the job has to import."""
        of_attacks = {module for settings in self.attacks for module in settings.plugins()}
        return sorted(of_attacks.union(self.training.plugins()))

    def result(self) -> JobResult:
        """A result of which nothing is known yet."""
        return {
            "label": self.label,
            "seed": self.seed,
            "training": self.training.plain(),
            "status": FAILED,
            "attacks": [],
            "wall_s": None,
        }

    @property
    def name(self) -> str:
        """Label, seed and hash of all settings."""
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.label)
        return f"{safe}-s{self.seed}-{files.settings_hash(self.plain())[:6]}"


@dataclass(frozen=True)
class Variant:
    """Settings laid over the base, under a name of their own."""

    label: str
    values: Values


def plan(
    base: Values,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    suite: Callable[[TrainSettings], Sequence[Values]],
) -> list[Job]:
    """Resolve every job, or say what is wrong with all of them at once.

    Args:
        base: settings that all jobs share, as in a settings file.
        suite: from a training to the settings of the attacks on it.

    Raises:
        ConfigError: settings that do not resolve, each with the variant it belongs to.
        IncompatibleError: an attack that cannot read what the training would upload.
    """
    jobs: list[Job] = []
    problems: list[str] = []
    owners: dict[str, str] = {}
    for variant in variants:
        for seed in seeds:
            values = merge(merge(dict(base), variant.values), {"train": {"seed": seed}})
            own: list[str] = []
            training = resolve_training(values, {}, own)
            attacks = []
            if training is not None:
                found = [resolve_attack({**chosen}, {}, own) for chosen in suite(training)]
                attacks = [settings for settings in found if settings is not None]
                training = _keeping(training, attacks)
                for settings in attacks:
                    check_ahead(training, settings)
            problems += [f"{variant.label}: {text}" for text in own if seed == seeds[0]]
            if training is not None and not own:
                owner = owners.setdefault(training.run_name, variant.label)
                if owner != variant.label:
                    problems.append(f"{variant.label} is the same training as {owner}.")
                jobs.append(Job(variant.label, seed, training, tuple(attacks)))
    if problems:
        raise ConfigError(*problems)
    return jobs


def _keeping(training: TrainSettings, attacks: Sequence[AttackSettings]) -> TrainSettings:
    """A training that keeps its first round where one of the attacks is on it."""
    first = any(
        one.earliest and one.evaluation.round is None and not only_recorded(training, one)
        for one in attacks
    )
    if not first or training.record.keeps(1, training.train.rounds):
        return training
    return replace(training, record=replace(training.record, keep_first=True))


@dataclass(frozen=True)
class Place:
    """Where a benchmark lives: its own folder, and the folder of the runs it trains."""

    folder: Path
    runs: Path

    def result(self, job: Job) -> Path:
        """The file of a job's result."""
        return self.folder / "jobs" / f"{job.name}.json"

    def turn(self, job: Job) -> Path:
        """The folder that a process holds while it runs a job."""
        return self.folder / "jobs" / job.name

    def read(self, job: Job) -> JobResult | None:
        """A job's result, or None where it has none yet.

        Raises:
            DamagedInputError: it is not what this version writes.
        """
        path = self.result(job)
        return read_result(path) if path.is_file() else None

    def done(self, job: Job) -> bool:
        """Whether a job has finished well."""
        found = self.read(job)
        return found is not None and found["status"] == COMPLETE


def run_job(
    job: Job,
    place: Place,
    device: torch.device,
    page: Callable[[AttackResult], object],
) -> JobResult:
    """Train and attack in this process; write and return the result.

    What was interrupted before goes on; what another process does is waited for and taken up. A run
    whose uploads were pruned is trained again. An attack that refuses what it finds is recorded
    with its reason, a failure with its traceback.

    Args:
        page: called with every finished attack, to write its page.
    """
    with held(place.turn(job), wait=True):
        found = place.read(job)  # another benchmark may have done it in the meantime
        if found is not None and found["status"] == COMPLETE:
            return found
        return _run_job(job, place, device, page)


def _run_job(
    job: Job, place: Place, device: torch.device, page: Callable[[AttackResult], object]
) -> JobResult:
    started = time.monotonic()
    result = job.result()
    try:
        folder = place.runs / job.training.run_name
        pruned = status_of(folder) == COMPLETE and not (folder / "uploads").is_dir()
        run = train(job.training, runs=place.runs, device=device, restart=pruned, wait=True)
        result["run"], result["final"] = run.name, run.record["final"]
        result["dim"] = run.record["dim"]
        result["architectures"] = run.record["architectures"]
        result["predicted"] = predicted_leakage(job.training, run.record["class_counts"])
        for settings in job.attacks:
            entry: Attacked = {
                "attack": settings.attack.name,
                "answers": settings.attack.answers,
                "target": settings.target,
                "threat": settings.threat.name,
                "rounds_limit": _rounds_limit(settings),
                "verdict": REFUSED,
                "because": "",
            }
            result["attacks"].append(entry)
            try:
                done = attack(run, settings, device=device, wait=True)
                page(done)
            except IncompatibleError as error:  # such as prototypes that nothing can recover
                entry["because"] = str(error)
                continue
            verdict = done.card.verdict
            entry["verdict"], entry["because"] = verdict.word, verdict.because
            entry["round"], entry["folder"] = done.trial.round, done.folder.name
            entry["counterfactual"] = done.trial.counterfactual
            entry["measures"] = [asdict(measure) for measure in done.card.measures]
        result["status"] = COMPLETE
    except Exception as error:
        result["failure"] = str(error) if isinstance(error, FedreError) else repr(error)
        result["traceback"] = traceback.format_exc()
    result["wall_s"] = time.monotonic() - started
    files.write_json(place.result(job), result)
    return result


def read_result(path: Path) -> JobResult:
    """Read the result of a job.

    Raises:
        DamagedInputError: it is not what this version writes.
    """
    try:
        found = files.read_json(path, JobResult)
        check(found["training"], Trained, path)
        rows = [one for own in found["attacks"] for one in own.get("measures", ())]
        check(rows, list[MeasureRow], path)
    except DamagedInputError as error:
        raise DamagedInputError(
            *error.problems,
            next_step=f"It was changed, or an earlier version wrote it. Remove {path.parent}; "
            "finished runs and attacks are read back.",
        ) from None
    return found


def _rounds_limit(settings: AttackSettings) -> int | None:
    """How many of the latest rounds an attack over several rounds was told to read; None: all."""
    limits = [getattr(own, "rounds", None) for own in (settings.attack, settings.via)]
    return next((int(limit) for limit in limits if limit), None)


def predicted_leakage(
    training: TrainSettings, class_counts: Sequence[Sequence[int]]
) -> dict[str, float] | None:
    """What the weights of an entanglement scheme alone say about disentangling them.

    Medians over clients of two or more classes: the smallest singular value of the weights of all
    rounds, and the error of noise-free least squares (0: everything is recovered, 1: nothing).
    None for protocols that do not entangle.
    """
    found = []
    for client, counts in enumerate(class_counts):
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        if sum(count > 0 for count in counts) > 1:
            found.append(
                training.protocol.mixing_ahead(
                    labels, len(counts), training.train.rounds, training.train.seed, client
                )
            )
    known = [own for own in found if own is not None]
    if not known:
        return None
    return {
        "s_min": float(np.median([own.s_min for own in known])),
        "recovery_error": float(np.median([own.recovery_error for own in known])),
    }


def run_jobs(
    jobs: Sequence[Job],
    place: Place,
    *,
    device: str = "cpu",
    workers: int = 1,
    engine: str = "local",
    retry: bool = False,
    prune: bool = False,
    worker: str,
    report: Report = silent,
) -> list[JobResult]:
    """Run what is not done yet, each job in its own process; return all results, in order.

    Several benchmarks may share the folders: each takes jobs that no other is at.

    Args:
        workers: jobs at once; they share the cores evenly.
        engine: "local", or "ray" for several machines that share the folders.
        retry: run again what failed before.
        prune: remove models and uploads of runs whose attacks have finished.
        worker: module that a job's process runs: it reads the job's settings file, its first
            argument, and calls `run_job`.

    Raises:
        MissingExtraError: Ray is asked for and not installed.
    """
    waiting = []
    for job in jobs:
        found = place.read(job)
        if found is None or (retry and found["status"] != COMPLETE):
            waiting.append(job)
    order = list(dict.fromkeys(job.seed for job in jobs))
    waiting.sort(key=lambda job: order.index(job.seed))  # every variant once before any twice
    report(Event("sweep.plan", {"jobs": len(jobs), "waiting": len(waiting)}))
    remove_stale(place.folder)
    for job in waiting:
        files.write_yaml(place.folder / "jobs" / f"{job.name}.yaml", job.plain())
    threads = max(1, (os.cpu_count() or 1) // max(1, workers))
    arguments = {
        job.name: [
            worker, str((place.folder / "jobs" / f"{job.name}.yaml").resolve()),
            str(place.folder.resolve()), str(place.runs.resolve()), device, *job.plugins(),
        ]
        for job in waiting
    }  # fmt: skip
    started = time.monotonic()
    for number, (job, code) in enumerate(
        ENGINES[engine](waiting, place, arguments, workers, threads), start=1
    ):
        found = place.read(job)
        if found is None:  # the process died before it could write
            log = place.folder / "jobs" / f"{job.name}.log"
            tail = log.read_text(encoding="utf-8")[-2000:] if log.is_file() else ""
            found = job.result()
            found["failure"] = f"the process ended with code {code}"
            found["traceback"] = tail
            files.write_json(place.result(job), found)
        if prune and found["status"] == COMPLETE:
            for name in ("models", "uploads", "private"):
                shutil.rmtree(place.runs / job.training.run_name / name, ignore_errors=True)
        elapsed = time.monotonic() - started
        report(
            Event(
                "sweep.job",
                {
                    "job": job.name,
                    "status": found["status"],
                    "failure": found.get("failure"),
                    "wall_s": found["wall_s"],
                    "done": number,
                    "of": len(waiting),
                    "left_s": elapsed / number * (len(waiting) - number),
                },
            )
        )
    for job in jobs:
        remove_left(place.turn(job))
    return [found for job in jobs if (found := place.read(job)) is not None]


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


def _ray(
    jobs: Sequence[Job], place: Place, arguments: Arguments, workers: int, threads: int
) -> Iterator[tuple[Job, int]]:
    """Ray tasks; every machine must see the benchmark's and the runs' folders."""
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise MissingExtraError(
            "Engine 'ray' needs the package ray, which is not installed.",
            next_step="pip install 'fedre-privacy[ray]', or leave --engine out to use this "
            "machine alone.",
        ) from None
    ray.init(ignore_reinit_error=True)
    remote = ray.remote(num_cpus=threads)(call)
    futures = {remote.remote(list(arguments[job.name]), threads): job for job in jobs}
    waiting = list(futures)
    while waiting:
        (ready, *_), waiting = ray.wait(waiting)
        yield futures[ready], ray.get(ready)


ENGINES = {"local": _local, "ray": _ray}


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
