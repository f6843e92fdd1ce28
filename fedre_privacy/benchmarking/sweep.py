"""Many trainings and attacks: planned first, each job in its own process, resumable.

A job is one training and the attacks on it. Its result lies on disk; a job that failed keeps its
first traceback and is shown, never averaged away.
"""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import torch

from fedre_privacy.core import files
from fedre_privacy.core.engines import JOBS, engine_named
from fedre_privacy.core.errors import FedreError, IncompatibleError
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.lock import lock_folder, remove_left, remove_stale
from fedre_privacy.experiments.attack import AttackResult, attack
from fedre_privacy.experiments.questions.base import question_of
from fedre_privacy.runs.folder import COMPLETE, status_of
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.runs.training import train

from .jobs import REFUSED, BenchmarkJob, Place
from .results import JobAttack, JobResult

WORKER = f"{__package__}.worker"
"""The module that the process of a job runs."""


def run_job(
    job: BenchmarkJob,
    place: Place,
    device: torch.device,
    page: Callable[[AttackResult], object],
) -> JobResult:
    """Train and attack in this process; write and return the result.

    What was interrupted before goes on; what another process does is waited for and taken up. A run
    whose uploads were pruned is trained again. An attack that refuses what it finds is recorded
    with its reason, a failure with its traceback.
    """
    with lock_folder(place.turn(job), wait=True):
        found = place.read(job)  # another benchmark may have done it in the meantime
        if found is not None and found["status"] == COMPLETE:
            return found
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
                entry: JobAttack = {
                    "attack": settings.attack.name,
                    "answers": question_of(settings).name,
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
    jobs: Sequence[BenchmarkJob],
    place: Place,
    *,
    device: str = "cpu",
    workers: int = 1,
    engine: str = "local",
    retry: bool = False,
    prune: bool = False,
    page: str,
    report: Report = silent,
) -> list[JobResult]:
    """Run what is not done yet, each job in its own process; return all results, in order.

    Several benchmarks may share the folders: each takes jobs that no other is at.

    Args:
        workers: jobs at once; they share the cores evenly.
        engine: "local", or "ray" for the machines of a cluster.
        retry: run again what failed before.
        prune: remove models and uploads of runs whose attacks have finished.
        page: ``module:function`` that writes the page of a finished attack, in the job's process.

    Raises:
        MissingExtraError: Ray is asked for and not installed.
    """
    run_jobs = engine_named(engine, JOBS)
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
            WORKER, str((place.folder / "jobs" / f"{job.name}.yaml").resolve()),
            str(place.folder.resolve()), str(place.runs.resolve()), device, page, *job.plugins(),
        ]
        for job in waiting
    }  # fmt: skip
    started = time.monotonic()
    for number, (job, code) in enumerate(
        run_jobs(waiting, place, arguments, workers, threads), start=1
    ):
        found = place.read(job)
        if found is None:  # the process died before it could write
            log = place.folder / "jobs" / f"{job.name}.log"
            tail = log.read_text(encoding="utf-8")[-2000:] if log.is_file() else ""
            last = tail.strip().rpartition("\n")[2]
            found = job.result()
            found["failure"] = f"the process ended with code {code}" + (f": {last}" if last else "")
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
