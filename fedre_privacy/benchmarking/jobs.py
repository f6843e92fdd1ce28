"""Jobs of a benchmark: planned from variants and seeds, named, and where their results lie.

A job is one training and the attacks on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedre_privacy.core import files
from fedre_privacy.core.config import merge
from fedre_privacy.core.errors import ConfigError, DamagedInputError, IncompatibleError
from fedre_privacy.core.typed_yaml import check
from fedre_privacy.experiments.attacked_rounds import only_recorded
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.runs.folder import COMPLETE, FAILED
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.settings import AttackSettings, TrainSettings

from .results import JobResult, MeasureRow, TrainingSettings

Values = Mapping[str, Any]


REFUSED = "refused"


@dataclass(frozen=True)
class BenchmarkJob:
    """One training and the attacks on it.

    Args:
        label: what is compared; jobs of one label differ in their seed alone.
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


IN_A_BENCHMARK = (
    "In a benchmark --attack, --target and --threat are one word: --attacks attack@target@threat."
)


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
) -> list[BenchmarkJob]:
    """Resolve every job, or say what is wrong with all of them at once.

    Args:
        suite: from a training to the settings of the attacks on it.

    Raises:
        ConfigError: settings that do not resolve, each once with the variants it belongs to.
        IncompatibleError: an attack that cannot read what the training would upload.
    """
    jobs: list[BenchmarkJob] = []
    problems: dict[str, list[str]] = {}
    owners: dict[str, str] = {}
    twice: list[str] = []
    unfit: dict[str, list[str]] = {}
    for variant in variants:
        for seed in seeds:
            values = merge(merge(dict(base), variant.values), {"train": {"seed": seed}})
            own: list[str] = []
            training = resolve_training(values, {}, own)
            attacks = []
            if training is not None:
                found = [resolve_attack({**chosen}, {}, own) for chosen in suite(training)]
                attacks = [settings for settings in found if settings is not None]
                training = _keep_first_round(training, attacks)
                try:
                    for settings in attacks:
                        check_ahead(training, settings)
                except IncompatibleError as error:
                    unfit.setdefault(str(error), []).append(variant.label)
            for text in own if seed == seeds[0] else ():
                problems.setdefault(text, []).append(variant.label)
            if training is not None and not own:
                owner = owners.setdefault(training.run_name, variant.label)
                if owner != variant.label and seed == seeds[0]:
                    twice.append(f"{variant.label} is the same training as {owner}: name one.")
                jobs.append(BenchmarkJob(variant.label, seed, training, tuple(attacks)))
    told = [
        text if 1 < len(variants) == len(labels) else f"{', '.join(labels)}: {text}"
        for text, labels in problems.items()
    ]
    if told or twice:
        raise ConfigError(*told, *twice)
    if unfit:
        said = [f"{', '.join(dict.fromkeys(own))}: {text}" for text, own in unfit.items()]
        raise IncompatibleError(*said, next_step=IN_A_BENCHMARK)
    return jobs


def _keep_first_round(training: TrainSettings, attacks: Sequence[AttackSettings]) -> TrainSettings:
    """A training that keeps its first round where one of the attacks is on it."""
    first = any(
        one.earliest and one.evaluation.round is None and not only_recorded(training, one)
        for one in attacks
    )
    if not first or training.record.keeps(1, training.train.rounds):
        return training
    return replace(training, record=replace(training.record, keep_first=True))


@dataclass(frozen=True)
class Shard:
    """One of several processes, often on several machines, that share the jobs of a benchmark.

    Args:
        number: from 1 to `count`.

    Raises:
        ConfigError: a number out of range.
    """

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ConfigError(
                f"There is no shard {self.number}/{self.count}: shards of {max(1, self.count)} are "
                f"numbered from 1 to {max(1, self.count)}.",
                next_step="In an array job of SLURM: sbatch --array=1-4, and --shard "
                "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT.",
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that ``I/N`` names.

        Raises:
            ConfigError: another form, or a number out of range.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal()):
            raise ConfigError(f"A shard is I/N, for example 1/4; got '{text}'.")
        return cls(int(number), int(count))

    def order(self, jobs: Sequence[BenchmarkJob]) -> list[BenchmarkJob]:
        """Its own jobs first, then those of the others, which come to the last ones late."""
        own = [job for i, job in enumerate(jobs) if i % self.count == self.number - 1]
        others = [job for i, job in enumerate(jobs) if i % self.count != self.number - 1]
        return own + others[::-1]


WHOLE = Shard()
"""All jobs, shared with nobody."""


@dataclass(frozen=True)
class Place:
    """Where a benchmark lives: its own folder, and the folder of the runs it trains."""

    folder: Path
    runs: Path

    def result(self, job: BenchmarkJob) -> Path:
        """The file of a job's result."""
        return self.folder / "jobs" / f"{job.name}.json"

    def turn(self, job: BenchmarkJob) -> Path:
        """The folder that a process holds while it runs a job."""
        return self.folder / "jobs" / job.name

    def read(self, job: BenchmarkJob) -> JobResult | None:
        """A job's result, or None where it has none yet.

        Raises:
            DamagedInputError: it is not what this version writes.
        """
        path = self.result(job)
        return read_result(path) if path.is_file() else None

    def done(self, job: BenchmarkJob, before: JobResult | None) -> bool:
        """Whether a job has finished well, or badly since its result was what it is `before`."""
        found = self.read(job)
        return found is not None and (found["status"] == COMPLETE or found != before)


def read_result(path: Path) -> JobResult:
    """Read the result of a job.

    Raises:
        DamagedInputError: it is not what this version writes.
    """
    try:
        found = files.read_json(path, JobResult)
        check(found["training"], TrainingSettings, path)
        rows = [one for own in found["attacks"] for one in own.get("measures", ())]
        check(rows, list[MeasureRow], path)
    except DamagedInputError as error:
        raise DamagedInputError(
            *error.problems,
            next_step=f"It was changed, or an earlier version wrote it. Remove {path.parent}; "
            "finished runs and attacks are read back.",
        ) from None
    return found
