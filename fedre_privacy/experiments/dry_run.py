"""A dry run: every check and one step of each loop, in a folder that is thrown away."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedre_privacy.attacks.base import RECOVERED, Context, attacks
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.events import Event, Report
from fedre_privacy.core.secrets import learn
from fedre_privacy.core.types import Observation
from fedre_privacy.core.units import human_bytes, human_seconds, plural
from fedre_privacy.partition.base import ClientSplit
from fedre_privacy.runs.disk_space import message_bytes, record_bytes, refuse_full
from fedre_privacy.runs.preparation import PreparedTraining, models_bytes, prepare
from fedre_privacy.runs.resolution import DEFAULTS
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.run_writer import summary
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox.client import run_attack

from .attack import peak_memory, prepare_attack
from .compatibility import check_ahead
from .questions.base import NAMES, Trial, question_of

LONG_S = 2.0
"""An attack that took longer is not repeated to measure it warm."""
LEAST_S, LEAST_SHARE = 0.3, 0.05
"""How much longer more repetitions of a loop must take, in seconds and as a share of few."""
MORE, MANY_MORE = 8, 64
"""How many times as many are tried, and where few take long."""


@dataclass(frozen=True)
class DryRunEstimate:
    """What a command would do, measured on its first steps.

    Args:
        lines: what would be done, by heading.
        train_s, attack_s: estimated seconds (0 where that part would not run).
        memory_bytes: peak memory of the dry run.
        disk_bytes: that the record of the training would take (0 where nothing would be trained).
        attack: what would be attacked by what; empty: nothing.
    """

    lines: dict[str, str]
    train_s: float
    attack_s: float
    memory_bytes: int
    disk_bytes: int = 0
    attack: str = ""

    def table(self, trainings: int = 1) -> list[dict[str, str]]:
        """What it would take, a row for each part.

        Args:
            trainings: how many such trainings there would be.
        """
        parts = {}
        if self.train_s:
            parts["one training" if trainings > 1 else "training"] = human_seconds(self.train_s)
        if trainings > 1:
            parts[f"{trainings} trainings"] = human_seconds(trainings * self.train_s)
        if self.attack:
            parts[f"attack: {self.attack}"] = human_seconds(self.attack_s)
        if self.train_s and self.attack:
            parts["in all"] = human_seconds(trainings * self.train_s + self.attack_s)
        if self.disk_bytes:
            of = "each training" if trainings > 1 else "the training"
            parts[f"on disk, the record of {of}"] = human_bytes(self.disk_bytes)
        parts["memory, of this dry run"] = human_bytes(self.memory_bytes)
        return [{"step": step, "takes about": takes} for step, takes in parts.items()]


def dry_run(
    training: TrainSettings | Run,
    settings: AttackSettings | None,
    device: torch.device,
    runs: Path = Path("runs"),
) -> DryRunEstimate:
    """Do every check and one step of each loop; write nothing that stays.

    Args:
        training: settings to train with, or the recorded run to attack.
        settings: the attack, or None to try training alone.

    Raises:
        FedreError: whatever the real command would refuse.
    """
    lines: dict[str, str] = {}
    train_s = attack_s = 0.0
    disk, attacked = 0, ""
    stands_in = False
    with tempfile.TemporaryDirectory() as scratch:
        if isinstance(training, Run):
            run = training
            lines["Run"] = f"{run.name} (recorded: {run.record['summary']})"
        else:
            if settings is not None:
                check_ahead(training, settings)
                stands_in = settings.target == RECOVERED
                settings = _after_one_step(settings)
            learn(runs / training.run_name, training.train.secret)
            prepared = prepare(training, device)
            run, train_s, disk = _first_step(training, prepared, Path(scratch), device)
            lines["Train"] = summary(training)
            lines["Data"] = f"{prepared.data.name}: {prepared.data.summary()}"
            refuse_full(training, disk, runs)
        if settings is not None:
            trial = prepare_attack(run, settings)
            lines |= {k: v for k, v in trial.lines().items() if k != "Uploaded" or train_s == 0}
            if stands_in:
                lines["Target"] = f"{NAMES[RECOVERED]}; the true ones stand in for this estimate"
            attack_s = _attack_seconds(trial, settings, device)
            attacked = f"{settings.attack.name} on {_targets(trial.observation)}"
    memory = max(peak_memory(device).values())
    return DryRunEstimate(lines, train_s, attack_s, memory, disk, attacked)


def dry_run_suite(
    training: TrainSettings,
    suite: Sequence[AttackSettings],
    device: torch.device,
    known: dict[str, float],
    report: Callable[[str, float], None],
) -> tuple[float, float, int]:
    """Estimate one training and all attacks on it from their first steps.

    Args:
        known: seconds of each attack (`words_of`) that was measured before, for another training of
            the same benchmark. Those are not measured again, and new ones are added.
        report: is told the words and seconds of each attack once it is measured.

    Returns:
        Seconds of the training, of the attacks, and bytes of the training's record.

    Raises:
        FedreError: whatever the real commands would refuse.
    """
    for settings in suite:
        check_ahead(training, settings)
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare(training, device)
        run, train_s, disk = _first_step(training, prepared, Path(scratch), device)
        attack_s = 0.0
        for settings in suite:
            trial = prepare_attack(run, _after_one_step(settings))
            what = words_of(settings)
            if what not in known:
                known[what] = _attack_seconds(trial, settings, device)
                report(what, known[what])
            attack_s += known[what]
    return train_s, attack_s, disk


def words_of(settings: AttackSettings) -> str:
    """``attack@target@threat``, as a benchmark's attacks are named."""
    return f"{settings.attack.name}@{settings.target}@{settings.threat.name}"


def quicker(
    trainings: Sequence[tuple[float, Sequence[AttackSettings]]],
    known: Mapping[str, float],
    limit: float,
) -> tuple[list[str], float]:
    """Attacks that fit into a time beside the trainings, the quickest first, and what all takes.

    They are those that run on every training, with their own settings.

    Args:
        trainings: seconds of each, and the attacks on it.
        known: seconds of attacks, see `dry_run_suite`.
        limit: seconds in all.

    Returns:
        The attacks' words; empty where none fits.
    """
    usual = [
        {words_of(one) for one in suite if one.attack == attacks.get(one.attack.name)()
         and (one.via is None or one.via.name == DEFAULTS["via"])}
        for _, suite in trainings
    ]  # fmt: skip
    total, chosen = sum(seconds for seconds, _ in trainings), list[str]()
    for words in sorted(set.intersection(*usual), key=lambda one: (known[one], one)):
        own = known[words] * len(trainings)
        if total + own <= limit:
            total, chosen = total + own, [*chosen, words]
    return chosen, total


def _after_one_step(settings: AttackSettings) -> AttackSettings:
    """The attack on the only round of a dry run, which is too little to recover prototypes from.

    The true prototypes, which are as many and as long, stand in for recovered ones.
    """
    last = dataclasses.replace(settings.evaluation, round=None)
    settings = dataclasses.replace(settings, evaluation=last)
    if settings.target == RECOVERED:
        return dataclasses.replace(settings, target=Prototypes.kind, via=None)
    return settings


def _attack_seconds(trial: Trial, settings: AttackSettings, device: torch.device) -> float:
    """Estimate the seconds of an attack from few repetitions of each of its loops, and from more.

    What stands outside of loops is measured once and not multiplied.
    """
    attack = settings.attack
    asked = {name: int(getattr(attack, name)) for name in attack.loops if hasattr(attack, name)}
    few = {name: min(attack.loops[name], count) for name, count in asked.items()}
    paces: list[float] = []

    def timed(**counts: int) -> float:
        started = time.monotonic()
        run_attack(
            dataclasses.replace(attack, **{**few, **counts}),
            trial.observation,
            Context(trial.attack_seed, device, report=_pace(paces)),
            outcome=question_of(settings).outcome(),
            hidden=trial.hidden(),
        )
        return time.monotonic() - started

    once, more = timed(), MANY_MORE
    if once <= LONG_S:  # the first pass warms up, which matters to a short one
        once, more = timed(), MORE
    seconds, least = once, max(LEAST_S, LEAST_SHARE * once)
    pace = max(paces, default=0.0)
    for name, count in asked.items():
        repeated, longer = few[name], 0.0
        enough = few[name] + math.ceil(least / pace) if pace else count
        while repeated < count and longer < least:
            repeated = min(more * repeated, count, enough)
            enough = count
            longer = timed(**{name: repeated}) - once
        if repeated > few[name]:
            seconds += max(longer, 0.0) * (count - few[name]) / (repeated - few[name])
    return seconds


def _pace(paces: list[float]) -> Report:
    """What notes the seconds from one step that an attack tells of the same rows to the next."""
    last: dict[int, float] = {}

    def note(event: Event) -> None:
        if event.name == "attack.step":
            now, rows = time.monotonic(), int(event.data["first"])
            if rows in last:
                paces.append(now - last[rows])
            last[rows] = now

    return note


def _targets(observation: Observation) -> str:
    rows = sum(
        len(found)
        for upload in observation.targets
        for artifact in upload.artifacts
        if (found := artifact.rows()) is not None
    )
    return plural(rows, "row") if rows else plural(len(observation.targets), "upload")


def _first_step(
    settings: TrainSettings, prepared: PreparedTraining, scratch: Path, device: torch.device
) -> tuple[Run, float, int]:
    """Train one batch per client; return the run, and seconds and bytes of the whole training."""
    size = settings.train.batch_size
    training = dataclasses.replace(settings.train, rounds=1, epochs=1)
    record = dataclasses.replace(settings.record, rounds=())
    once = dataclasses.replace(settings, train=training, record=record)
    split = ClientSplit(
        tuple(own[:size] for own in prepared.split.train),
        tuple(own[:size] for own in prepared.split.test),
    )
    counts = split.class_counts(prepared.data.labels.numpy(), prepared.data.num_classes)
    short = dataclasses.replace(
        prepared,
        split=split,
        record=record,
        shared_test=prepared.shared_test[:0],
        setting=dataclasses.replace(
            prepared.setting,
            training=training,
            class_counts=tuple(tuple(int(n) for n in row) for row in counts),
        ),
    )
    started = time.monotonic()
    run = train(once, runs=scratch, device=device, prepared=short)
    per_batch = (time.monotonic() - started) / max(1, len(short.split.train))
    batches = sum(max(1, len(own) // size) for own in prepared.split.train)
    share = settings.train.join_ratio * settings.train.epochs
    models, messages = models_bytes(settings, prepared.setting), message_bytes(run.folder) or 0
    disk = record_bytes(prepared.record, settings.train.rounds, messages, models)
    return run, per_batch * batches * share * settings.train.rounds, disk
