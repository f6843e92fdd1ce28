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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import torch

from fedre_privacy.core import files
from fedre_privacy.core.engines import JOBS, engine_named
from fedre_privacy.core.errors import FedreError, IncompatibleError
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.lock import lease_folder, remove_left_lease, remove_stale
from fedre_privacy.experiments.attack import AttackResult, attack
from fedre_privacy.experiments.questions.base import question_of
from fedre_privacy.runs.folder import COMPLETE, status_of
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.runs.training import train

from .executors import Resources
from .jobs import REFUSED, WHOLE, BenchmarkJob, Place, Shard
from .results import JobAttack, JobResult

WORKER = f"{__package__}.worker"
"""The module that the process of a job runs."""


def run_job(
    job: BenchmarkJob,
    place: Place,
    device: torch.device,
    page: Callable[[AttackResult], object],
    lost: Callable[[], None] = lambda: None,
) -> JobResult:
    """Train and attack in this process; write and return the result.

    What was interrupted before goes on; what another process does is waited for and taken up. A run
    whose uploads were pruned is trained again. An attack that refuses what it finds is recorded
    with its reason, a failure with its traceback. The page of an attack is written while the next
    attack runs; one that a kill kept from being written is written when its attack is read back.

    Args:
        lost: called where another machine takes the job over, see `lease_folder`.
    """
    before = place.read(job)
    with lease_folder(place.turn(job), lost):
        if place.done(job, before):  # by another benchmark in the meantime
            found = place.read(job)
            assert found is not None
            return found
        started = time.monotonic()
        result = job.result()
        try:
            folder = place.runs / job.training.run_name
            pruned = status_of(folder) == COMPLETE and not (folder / "uploads").is_dir()
            run = train(job.training, runs=place.runs, device=device, restart=pruned, wait=True)
            result["run"], result["final"] = run.name, run.record["final"]
            result["dim"] = run.record["dim"]
            result["round_s"] = float(run.metrics()["wall_s"].min())
            result["architectures"] = run.record["architectures"]
            result["predicted"] = predicted_leakage(job.training, run.record["class_counts"])
            with ThreadPoolExecutor(1) as beside:
                pages = []
                for settings in job.attacks:
                    entry = _unanswered(settings)
                    result["attacks"].append(entry)
                    try:
                        done = attack(run, settings, device=device, wait=True)
                    except IncompatibleError as error:  # prototypes that nothing can recover
                        entry["because"] = str(error)
                        continue
                    pages.append(beside.submit(page, done))
                    verdict = done.card.verdict
                    entry["verdict"], entry["because"] = verdict.word, verdict.because
                    entry["round"], entry["folder"] = done.trial.round, done.folder.name
                    entry["counterfactual"] = done.trial.counterfactual
                    entry["measures"] = [asdict(measure) for measure in done.card.measures]
            for written in pages:
                written.result()
            result["status"] = COMPLETE
        except Exception as error:
            result["failure"] = str(error) if isinstance(error, FedreError) else repr(error)
            result["traceback"] = traceback.format_exc()
        result["wall_s"] = time.monotonic() - started
        files.write_json(place.result(job), result)
        return result


def _unanswered(settings: AttackSettings) -> JobAttack:
    """An attack of a job before anything is known of its answer."""
    return {
        "attack": settings.attack.name,
        "answers": question_of(settings).name,
        "target": settings.target,
        "threat": settings.threat.name,
        "rounds_limit": _rounds_limit(settings),
        "attacker": settings.evaluation.attacker,
        "verdict": REFUSED,
        "because": "",
    }


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
    gpu_share: float | None = None,
    shard: Shard = WHOLE,
    retry: bool = False,
    prune: bool = False,
    page: str,
    report: Report = silent,
) -> list[JobResult]:
    """Run what is not done yet, each job in its own process; return all results, in order.

    Several benchmarks may share the folders, on several machines too: each takes jobs that no other
    is at, and waits for the last ones.

    Args:
        device: auto, cpu, cuda or cuda:N, chosen where a job runs.
        workers: jobs at once; they share the cores evenly.
        engine: "local", or "ray" for the machines of a cluster.
        gpu_share: part of a GPU that a job takes on a cluster, in (0, 1]; None: a whole one.
        shard: whose jobs are begun first.
        retry: run again what failed before.
        prune: remove models and uploads of runs whose attacks have finished.
        page: ``module:function`` that writes the page of a finished attack, in the job's process.

    Raises:
        ConfigError: there is no such device, or a share or shard out of range.
        MissingExtraError: Ray is asked for and not installed.
    """
    run_jobs = engine_named(engine, JOBS)
    order = list(dict.fromkeys(job.seed for job in jobs))
    by_seed = sorted(jobs, key=lambda job: order.index(job.seed))  # every variant once, then twice
    before = {job.name: place.read(job) for job in jobs}
    waiting = []
    for job in shard.order(by_seed):
        found = before[job.name]
        if found is None or (retry and found["status"] != COMPLETE):
            waiting.append(job)
    threads = max(1, (os.cpu_count() or 1) // max(1, workers))
    arguments = {
        job.name: [
            WORKER, str((place.folder / "jobs" / f"{job.name}.yaml").resolve()),
            str(place.folder.resolve()), str(place.runs.resolve()), device, page, *job.plugins(),
        ]
        for job in waiting
    }  # fmt: skip
    resources = Resources(device, workers, threads, gpu_share)
    running = run_jobs(waiting, place, arguments, resources, before)  # refuses what cannot be had
    report(Event("sweep.plan", {"jobs": len(jobs), "waiting": len(waiting)}))
    remove_stale(place.folder)
    for job in waiting:
        files.write_yaml(place.folder / "jobs" / f"{job.name}.yaml", job.plain())
    started = time.monotonic()
    for number, (job, code) in enumerate(running, start=1):
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
        remove_left_lease(place.turn(job))
    return [found for job in jobs if (found := place.read(job)) is not None]
