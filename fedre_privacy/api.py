"""The front door for Python: train, attack and benchmark in one call each.

The functions take what the commands take, under the same names, and make the same settings of
it: ``train("fedre", rounds=5)`` and ``fedre-train --protocol fedre --rounds 5`` name the same run
folder, and whichever comes second reads back what the first has done. Every other setting is
given by its dotted name: ``set={"attack.steps": 300}`` is ``--set attack.steps=300``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import pandas as pd
from matplotlib.figure import Figure

from fedre_privacy.cli import attack as attack_command
from fedre_privacy.cli import benchmark as benchmark_command
from fedre_privacy.cli import train as train_command
from fedre_privacy.cli.job import WORKER
from fedre_privacy.cli.options import choose_device, gather
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.events import Report, silent
from fedre_privacy.eval.report import training_curves
from fedre_privacy.pages.attack import attack_page
from fedre_privacy.pages.benchmark import write_benchmark_report
from fedre_privacy.pages.html import fragment
from fedre_privacy.pages.shared import NAME
from fedre_privacy.play import attack as attacking
from fedre_privacy.play import own_module
from fedre_privacy.runs import folder as recorded
from fedre_privacy.runs import training as training
from fedre_privacy.runs.settings import (
    ATTACK_SECTIONS,
    TRAIN_SECTIONS,
    check_sections,
    resolve_attack,
    resolve_training,
)
from fedre_privacy.sealed.door import AUTO
from fedre_privacy.study import benchmark as benchmarking

Settings = Mapping[str, Any]
P = ParamSpec("P")


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
                "scalars up": f"{final['up_scalars']:,.0f}",
                "scalars down": f"{final['down_scalars']:,.0f}",
            }
        ]

    def frame(self) -> pd.DataFrame:
        """One row per round: accuracy, loss and traffic, as in ``metrics.csv``."""
        return pd.read_csv(self.folder / "metrics.csv")

    def figure(self) -> Figure:
        """Accuracy and loss per round."""
        chance = 1 / len(self.record["classes"])
        return training_curves(
            self.frame(), title=self.name, caption=self.record["summary"], chance=chance
        )

    def _repr_html_(self) -> str:
        return fragment(self.table(), title=self.name, foot=self.record["summary"])


class AttackResult(attacking.AttackResult):
    """What an attack recovered and how well; what `attack` returns."""

    def _repr_html_(self) -> str:
        game = self.game
        words = f"{game.settings.attack.name} on {game.kind} of {game.run.name}"
        flags = ["COUNTERFACTUAL"] if game.counterfactual else []
        flags += [f"ORACLE ({', '.join(self.record['oracles'])})"] if self.record["oracles"] else []
        foot = f"{self.verdict()}. Everything is in {self.folder / NAME}."
        return fragment(self.table(), title="  ".join([words, *flags]), foot=foot)


class BenchmarkResult(benchmarking.BenchmarkResult):
    """Variants side by side; what `benchmark` returns."""

    def frame(self) -> pd.DataFrame:
        """One row per variant, attack and measure: means over seeds, as in ``summary.csv``."""
        return self.summary

    def _repr_html_(self) -> str:
        failed = self.failures()
        foot = f"FAILED: {'; '.join(failed)}. " if failed else ""
        return fragment(
            self.table(),
            title=self.folder.name,
            foot=f"{foot}Everything is in {self.folder / NAME}.",
        )


def train(
    protocol: str | None = None,
    dataset: str | None = None,
    *,
    clients: int | None = None,
    rounds: int | None = None,
    partition: str | None = None,
    models: str | None = None,
    scheme: str | None = None,
    seed: int | None = None,
    preset: str | Sequence[str] = (),
    set: Settings | None = None,
    runs: str | Path = "runs",
    device: str = "auto",
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
) -> Run:
    """Train a federation and record what it exchanges, or return the identical earlier run.

    Args:
        protocol, dataset, clients, rounds, partition, models, scheme, seed: as in ``fedre-train
            --help``; None is the command's default (fedre, digits, 10 clients, 20 rounds,
            ``pra:0.1``, cnn4, rap, 0). `scheme` and `protocol` may be ``module:Class``.
        preset: named settings, the later ones win; options win over all.
        set: any other setting by its dotted name, for example ``{"train.lr": 0.05}``.
        runs: folder of the run folders.
        device: auto, cpu, cuda or cuda:N.
        resume: go on with an unfinished run of these settings.
        restart: remove an earlier run of these settings first.
        report: called with an `Event` for every round.

    Raises:
        FedreError: whatever the command would refuse, with what is needed.
    """
    options = _options(
        train_command.parser(),
        set,
        preset=[preset] if isinstance(preset, str) else list(preset),
        protocol=protocol,
        dataset=dataset,
        clients=clients,
        rounds=rounds,
        partition=partition,
        models=models,
        scheme=scheme,
        seed=seed,
    )
    values, where = gather(options)
    problems = _misplaced(set, ATTACK_SECTIONS, "a setting of an attack; train only trains")
    check_sections(values, where, problems)
    settings = resolve_training(values, where, problems)
    if problems or settings is None:
        raise ConfigError(*problems)
    run = training.train(
        settings,
        runs=Path(runs),
        device=choose_device(device),
        resume=resume,
        restart=restart,
        report=report,
    )
    return Run(run.folder)


def attack(
    run: recorded.Run | str | Path,
    target: str | None = None,
    attack: str | None = None,
    *,
    threat: str | None = None,
    targets: int | None = None,
    round: int | None = None,
    metrics: Sequence[str] | None = None,
    set: Settings | None = None,
    device: str = "auto",
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    isolation: str = AUTO,
) -> AttackResult:
    """Attack a recorded run, score it beside its floors, and write figures and ``report.html``.

    Args:
        run: what `train` returned, or a run's folder.
        target: what is attacked, as in ``fedre-attack --help``; None: what was uploaded.
        attack: its name or ``module:Class``; None: the one for the target (``dip`` for images).
        threat: what the attacker knows; None: ``fedre-paper``.
        targets: targets at most; None: 24.
        round: round to attack; None: the last one.
        metrics: names of metrics; None: PSNR, SSIM and MSE.
        set: any other setting by its dotted name, for example ``{"attack.steps": 300}``.
        device: auto, cpu, cuda or cuda:N.
        resume: go on with an unfinished attack of these settings.
        restart: remove an earlier attack of these settings first.
        report: called with an `Event` now and then.
        isolation: how far the attack is kept from the run: strict, process or same-process; auto:
            the strictest that works here.

    Raises:
        FedreError: whatever the command would refuse, with what is needed.
    """
    if not isinstance(run, recorded.Run):
        run = Run(Path(run))
    attacking.require_complete(run)
    evaluation = {"targets": targets, "round": round, "metrics": metrics}
    given: dict[str, Any] = {
        "target": target,
        "threat": threat,
        "attack": None if attack is None else {"name": attack},
        "eval": {key: value for key, value in evaluation.items() if value is not None} or None,
    }
    values, where = gather(
        _options(attack_command.parser(), set), {k: v for k, v in given.items() if v is not None}
    )
    problems = _misplaced(set, TRAIN_SECTIONS, "a setting of the training, which is recorded")
    check_sections(values, where, problems)
    settings = resolve_attack(
        values,
        where,
        problems,
        image_shape=run.image_shape,
        uploads=run.settings.protocol.uploads,
    )
    if problems or settings is None:
        raise ConfigError(*problems)
    result = attacking.attack(
        run,
        settings,
        device=choose_device(device),
        resume=resume,
        restart=restart,
        report=report,
        isolation=isolation,
    )
    attack_page(result)
    return AttackResult(**_fields(result))


def _with_page(
    attacked: Callable[P, own_module.ModuleResult],
) -> Callable[P, own_module.ModuleResult]:
    """The same function, which also writes the page of what is written into a folder."""

    @functools.wraps(attacked)
    def called(*args: P.args, **given: P.kwargs) -> own_module.ModuleResult:
        result = attacked(*args, **given)
        if result.written is not None:
            attack_page(result.written)
        return result

    return called


attack_module = _with_page(own_module.attack_module)


def benchmark(
    protocols: Sequence[str | Settings] = (),
    schemes: Sequence[str | Settings] = (),
    *,
    defenses: Sequence[str | Settings] = (),
    vary: Mapping[str, Settings] | None = None,
    sweep: str | Path | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    attacks: Sequence[str | Settings] | None = None,
    targets: int | None = None,
    dataset: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    partition: str | None = None,
    models: str | None = None,
    set: Settings | None = None,
    runs: str | Path = "runs",
    out: str | Path | None = None,
    jobs: int = 1,
    engine: str = "local",
    device: str = "auto",
    retry: bool = False,
    prune: bool = False,
    report: Report = silent,
) -> BenchmarkResult:
    """Train and attack variants over seeds, and set them side by side.

    Every job runs in a process of its own; what is finished is read back. A variant that fails
    does not stop the others: see `BenchmarkResult.failures`.

    Args:
        protocols, schemes, defenses: what is compared; names, ``module:Class`` (a module that a
            new process in this folder can import), or a name with settings:
            ``{"name": "m-of-n", "m": 2}``. Schemes are those of fedre; defences multiply the rest.
        vary: further variants, label to settings: ``{"one epoch": {"train": {"epochs": 1}}}``.
        sweep: a sweep file in place of what to compare, seeds, attacks and targets.
        seeds: of the trainings.
        attacks: ``attack``, ``attack@target``, ``attack@target@threat``, or settings such as
            ``{"attack": {"name": "dip", "steps": 300}, "target": "prototypes"}``; None: those
            that fit each variant's uploads.
        targets: targets per attack that is given by name.
        dataset, clients, rounds, partition, models, set: of all trainings, as for `train`.
        runs: folder of the run folders.
        out: folder of the benchmark; None: one in `runs`.
        jobs: trainings at once.
        engine: where jobs run, ``local`` or ``ray``.
        device: auto, cpu, cuda or cuda:N.
        retry: run again what failed before.
        prune: remove models and uploads of finished runs.
        report: called with an `Event` for every finished job.

    Raises:
        FedreError: settings that cannot work, before anything is trained.
    """
    options = _options(
        benchmark_command.parser(),
        set,
        dataset=dataset,
        clients=clients,
        rounds=rounds,
        partition=partition,
        models=models,
    )
    values, where = gather(options)
    problems = _misplaced(set, ATTACK_SECTIONS, "a setting of an attack; give it in 'attacks'")
    check_sections(values, where, problems)
    compared = {"protocols": protocols, "schemes": schemes, "defenses": defenses, "vary": vary}
    if sweep is not None:
        extra = [name for name, value in {**compared, "attacks": attacks}.items() if value]
        if extra:
            problems.append(f"{', '.join(extra)} cannot be given beside a sweep file.")
    if problems:
        raise ConfigError(*problems)
    if sweep is not None:
        wanted = benchmarking.read_sweep(
            load_yaml(Path(sweep)).values, values, name=Path(sweep).stem
        )
    else:
        described = {**compared, "seeds": seeds, "attacks": attacks, "targets": targets}
        wanted = benchmarking.read_sweep(described, values, name="")
    runs = Path(runs)
    result = benchmarking.benchmark(
        wanted,
        folder=runs / "benchmarks" / wanted.name if out is None else Path(out),
        runs=runs,
        device=str(choose_device(device)),
        workers=jobs,
        engine=engine,
        retry=retry,
        prune=prune,
        worker=WORKER,
        report=report,
    )
    write_benchmark_report(result)
    return BenchmarkResult(**_fields(result))


def _options(
    parser: argparse.ArgumentParser, chosen: Settings | None, **given: Any
) -> argparse.Namespace:
    """The options of a command, as if it had been given these."""
    options = parser.parse_args([])
    for name, value in given.items():
        if value is not None:
            setattr(options, name, value)
    options.assign = [f"{key}={json.dumps(value)}" for key, value in (chosen or {}).items()]
    return options


def _misplaced(chosen: Settings | None, sections: Sequence[str], why: str) -> list[str]:
    return [f"'{key}' is {why}." for key in chosen or {} if key.split(".")[0] in sections]


def _fields(result: Any) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
