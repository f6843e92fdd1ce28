"""Resolved settings as work: runs trained, attacked and compared, each result with its page.

`api` resolves settings from names and objects, commands from options; both end here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from fedre_privacy.benchmarking import benchmark as benchmarking
from fedre_privacy.benchmarking.benchmark import BenchmarkResult as BenchmarkResult
from fedre_privacy.benchmarking.jobs import WHOLE, Shard
from fedre_privacy.benchmarking.variants import Benchmark, read_sweep, without_repeats
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.engines import IN_PROCESS, engine_named, training_engines
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.events import Report, silent
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.experiments import attack as attacking
from fedre_privacy.experiments.attack import AttackResult as AttackResult
from fedre_privacy.experiments.attacked_rounds import check_rounds
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.experiments.membership_result import MembershipResult
from fedre_privacy.experiments.shadow_federations import (
    ShadowFederationPlan,
    run_shadow_federations,
)
from fedre_privacy.loggers.base import LoggedWork, chosen_loggers, logging_work
from fedre_privacy.reports import run_figures
from fedre_privacy.reports.attack import attack_page
from fedre_privacy.reports.benchmark import write_benchmark_report
from fedre_privacy.reports.html import fragment
from fedre_privacy.reports.membership import write_membership_report
from fedre_privacy.reports.page_parts import NAME
from fedre_privacy.runs import preparation as preparing
from fedre_privacy.runs import run as recorded
from fedre_privacy.runs import training
from fedre_privacy.runs.folder import COMPLETE, status_of
from fedre_privacy.runs.resolution import check_sections
from fedre_privacy.runs.settings import AttackSettings, TrainSettings

PAGE = f"{attack_page.__module__}:{attack_page.__name__}"
"""What writes the page of an attack, for processes that are told by its name."""


class Run(recorded.Run):
    """A recorded training run; what `train` returns and `attack` takes."""

    def table(self) -> list[dict[str, str]]:
        """One row: accuracy at both moments (mean over clients), and traffic per round."""
        final = self.record["final"]

        def accuracy(moment: str) -> str:
            mean, sd = final.get(f"acc_{moment}"), final.get(f"acc_{moment}_sd")
            return "-" if mean is None else f"{mean:.3f} +- {sd:.3f}"

        return [
            {
                "protocol": self.settings.protocol.name,
                "accuracy after local training": accuracy("post_local"),
                "accuracy after the broadcast": accuracy("post_broadcast"),
                "on the shared test set": accuracy(f"shared_{self.settings.protocol.headline}"),
                "scalars up": f"{final['up_scalars']:,.0f}",
                "scalars down": f"{final['down_scalars']:,.0f}",
            }
        ]

    def frame(self) -> pd.DataFrame:
        """One row per round: accuracy, loss and traffic, as in ``metrics.csv``."""
        return self.metrics()

    def figure(self) -> Figure:
        """Accuracy and loss per round."""
        return run_figures.accuracy(self)[0]

    def _repr_html_(self) -> str:
        return fragment(self.table(), title=self.name, foot=self.record["summary"])


def _attack_html(result: AttackResult) -> str:
    trial = result.trial
    words = f"{trial.settings.attack.name} on {trial.kind} of {trial.run.name}"
    title = f"{words}  COUNTERFACTUAL" if trial.counterfactual else words
    foot = f"{result.verdict()}. Everything is in {result.folder / NAME}."
    return fragment(result.table(), title=title, foot=foot)


def _benchmark_html(result: BenchmarkResult) -> str:
    failed = f"FAILED: {'; '.join(result.failures())}. " if result.failures() else ""
    foot = f"{failed}Everything is in {result.folder / NAME}."
    return fragment(result.table(), title=result.folder.name, foot=foot)


AttackResult._repr_html_ = _attack_html
BenchmarkResult._repr_html_ = _benchmark_html


def run_training(
    settings: TrainSettings,
    *,
    runs: Path,
    device: torch.device,
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    attack: AttackSettings | None = None,
    engine: str = IN_PROCESS,
    log: str | Sequence[str] = (),
) -> Run:
    """Train by resolved settings, or return the identical earlier run; see `api.train`.

    Args:
        attack: what the run is for. What this attack would refuse is refused before anything is
            trained, and a run that is complete is kept in spite of `restart` and not logged.
        engine, log: see `api.train`.
    """
    chosen_loggers(log)
    chosen = engine_named(engine, training_engines())
    if restart or status_of(runs / settings.run_name) != COMPLETE:
        chosen.check()  # before a folder is begun or an earlier one goes
    prepared = None
    if attack is not None and status_of(runs / settings.run_name) == COMPLETE:
        restart, log = False, ()
    elif attack is not None:
        check_ahead(settings, attack)
        prepared = preparing.prepare(settings, device)
        check_rounds(settings, attack, prepared.record)
        for metric in attack.metrics.values():
            metric.check(prepared.data.image_shape)
    work = LoggedWork("training", settings.run_name, settings.plain(), runs)
    with logging_work(log, work, report) as logged:
        run = training.train(
            settings, runs=runs, device=device, resume=resume, restart=restart, report=logged,
            prepared=prepared, engine=chosen,
        )  # fmt: skip
        logged.summarise(_numbers(run.record["final"]))
    return Run(run.folder)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def run_attack(
    run: recorded.Run,
    settings: AttackSettings,
    *,
    report: Report = silent,
    log: str | Sequence[str] = (),
    **how: Any,
) -> AttackResult:
    """Attack a recorded run by resolved settings and write its page.

    Args:
        log: see `api.attack`.
        how: see `experiments.attack.attack`.
    """
    name = f"{run.name}/{settings.folder_name}"
    work = LoggedWork("attack", name, settings.plain(), run.folder.parent)
    with logging_work(log, work, report) as logged:
        result = attacking.attack(run, settings, report=logged, **how)
        logged.summarise(attack_numbers(result))
    attack_page(result)
    return result


def attack_numbers(result: AttackResult) -> dict[str, float]:
    """Return the measures over all targets by key, with their floors, and whether something leaks.

    Keys: ``leaks`` (1 or 0), and for each measure ``KEY``, ``KEY/floor`` and ``KEY/over`` where
    there is such a number.
    """
    numbers = {"leaks": float(result.leaks)}
    for one in result.card.measures:
        if not one.group:
            given = {"": one.value, "/floor": one.floor, "/over": one.over}
            numbers |= {f"{one.key}{end}": v for end, v in given.items() if v is not None}
    return numbers


def run_membership(plan: ShadowFederationPlan, **how: Any) -> MembershipResult:
    """Train the worlds of a plan, attack each, and write what was found into their folder.

    Args:
        how: see `experiments.shadow_federations.play_worlds`.

    Raises:
        FedreError: of a training or an attack.
    """
    done = MembershipResult(run_shadow_federations(plan, **how))
    done.write()
    write_membership_report(done)
    return done


def comparison(
    base: Mapping[str, Any], problems: list[str], *, sweep: Path | None, **described: Any
) -> Benchmark:
    """Resolve what a benchmark compares.

    Args:
        base: sections of settings that all trainings share.
        problems: found before; they are reported with those of the rest.
        sweep: a sweep file; what is given beside it wins over its own keys.
        described: the keys of a sweep file, see `benchmarking.variants.read_sweep`.

    Raises:
        ConfigError: all problems; nothing to compare.
    """
    check_sections(base, {}, problems)
    if problems:
        raise ConfigError(*problems)
    allow_module_paths(described)
    if sweep is not None:
        given = {
            key: value
            for key, value in described.items()
            if value or (key == "attacks" and value is not None)  # none is an answer there
        }
        return read_sweep({**load_yaml(sweep).values, **given}, base, name=sweep.stem)
    return read_sweep(without_repeats(described, base), base, name="")


def run_benchmark(
    wanted: Benchmark,
    *,
    runs: Path,
    device: str = "auto",
    out: Path | None = None,
    shard: str | None = None,
    report: Report = silent,
    log: str | Sequence[str] = (),
    **how: Any,
) -> BenchmarkResult:
    """Run what a benchmark compares and write its page.

    Args:
        device: auto, cpu, cuda or cuda:N, chosen where a job runs.
        out: folder of the benchmark; None: one in `runs`.
        shard: ``I/N`` of several processes that share these folders; None: all jobs.
        log: see `api.benchmark`.
        how: see `benchmarking.benchmark.benchmark`.
    """
    folder = out or runs / "benchmarks" / wanted.name
    described = {one.label: dict(one.values) for one in wanted.variants}
    settings = {"base": wanted.base, "variants": described, "seeds": list(wanted.seeds)}
    with logging_work(log, LoggedWork("benchmark", folder.name, settings, runs), report) as logged:
        result = benchmarking.benchmark(
            wanted, folder=folder, runs=runs, device=device, page=PAGE, report=logged,
            shard=WHOLE if shard is None else Shard.parse(shard), **how,
        )  # fmt: skip
        logged.summarise(_benchmark_numbers(result))
    write_benchmark_report(result)
    return result


def _benchmark_numbers(result: BenchmarkResult) -> dict[str, float]:
    """Means over seeds, and the number of failed jobs."""
    numbers: dict[str, Any] = {"failed": len(result.failures())}
    for row in result.frame().to_dict("records"):
        numbers[f"{row['label']}/accuracy"] = row["accuracy"]
        if not row["group"] and row["measure"] is not None:
            numbers[f"{row['label']}/{row['attack']} on {row['target']}/{row['measure']}"] = row[
                "value"
            ]
    return _numbers(numbers)
