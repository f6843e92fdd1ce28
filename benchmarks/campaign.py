"""Trainings and attacks of a campaign: which there are, in order of value, and one of them.

    python benchmarks/campaign.py NAME --size SIZE --data FILE.npz --runs DIR --out FILE.json

does one job and writes what it found; `benchmarks/gpu.py` does them all. A training's name is
PROTOCOL-PARTITION-sSEED, and behind it ``-rROUND`` for the attacks on a round of it. An attack
whose run is not in DIR trains it first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tools
import torch
from scheduling import Job

from fedre_privacy.benchmarking.suite import default_suite
from fedre_privacy.core import files
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.eval.measures import TABLE
from fedre_privacy.experiments.attack import attack
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.plain_settings import layer_settings, nest_assignments, training_values
from fedre_privacy.runs.resolution import require_resolved, resolve_attack, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox.client import AUTO, SAME

FIRST = ("fedre", "fedgh", "fedproto", "fedallrep", "lg-fedavg", "fd", "local", "fedavg")
"""Protocols in order of value."""
CLIENTS = 10
TEN = "het10"
"""FedRE's ten architectures."""
DEFENDED = ("gaussian:clip=8,noise=0.02", "dp-sgd:clip=1,epsilon=8")
PAPER_STEP = {"pra": 0.007, "pat": 0.008}
"""Local steps of FedRE's Table 10 for CIFAR-10 and one architecture, by partition."""
TEN_STEP = 0.01
HETEROGENEOUS_DIM = 512
"""Length that the representations of different architectures are brought to."""


@dataclass(frozen=True)
class Training:
    """One training of a campaign.

    Args:
        partition: as in ``--partition``. models: as in ``--models``.
        defense: as in ``--defense``; empty: none.
        attacked: rounds that the suite attacks, and whose messages are kept.
    """

    protocol: str
    partition: str
    seed: int
    models: str = "cnn4"
    defense: str = ""
    attacked: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of its result file."""
        more = [self.models] if self.models != "cnn4" else []
        more += [self.defense.partition(":")[0]] if self.defense else []
        parts = (self.protocol, *more, self.partition.replace(":", ""), f"s{self.seed}")
        return "-".join(parts)


@dataclass(frozen=True)
class Size:
    """How large the trainings of a campaign are.

    Args:
        per_class: images of each class and part of the data set; None: all.
        step: local step size; None: that of the papers.
        minutes: that a training, and the suite on one round, are expected to take where none has
            been timed.
    """

    rounds: int
    per_class: int | None
    step: float | None
    targets: int
    minutes: tuple[float, float]
    clients: int = CLIENTS


PUBLISHED, CPU, TOY = "published", "cpu", "toy"
SIZES = {
    PUBLISHED: Size(rounds=100, per_class=None, step=None, targets=64, minutes=(1.2, 3.0)),
    # step times number of steps as at published size: 84 and 98
    CPU: Size(rounds=60, per_class=500, step=0.06, targets=64, minutes=(4.0, 20.0)),
    TOY: Size(rounds=2, per_class=8, step=0.06, targets=2, minutes=(0.0, 0.0), clients=2),
}
MEASURE = (
    "key", "group", "title", "unit", "shown", "value", "interval", "floor", "floor_name", "over",
    "over_interval", "p", "n", "clients", "note",
)  # fmt: skip
"""What is kept of each measure."""
MEASURED_EVERY = 10
"""Rounds between two measurements of accuracy."""


def trainings(size: str) -> list[Training]:
    """The trainings of a campaign, the most valuable first."""
    if size == CPU:
        nine = [*FIRST, "fedral"]
        return [
            Training(protocol, partition, seed, attacked=(60,))
            for partition in ("pra:1.0", "pra:0.1")
            for seed in (0, 1, 2)
            for protocol in nine
        ]
    rest = [name for name in protocols.names() if name not in FIRST]
    made = [
        Training(protocol, partition, seed, attacked=(1, 10, 100))
        for seeds, partitions in (((0,), ("pra:0.1", "pra:1.0")), ((1, 2), ("pra:0.1", "pra:1.0")),
                                  ((0, 1, 2), ("pat:2",)))
        for seed in seeds
        for names in (FIRST, rest)
        for partition in partitions
        for protocol in names
    ]  # fmt: skip
    ten = ("fedre", "fedgh", "local", "fedproto", "lg-fedavg", "fedallrep")
    made += [Training(protocol, "pra:0.1", 0, models=TEN) for protocol in ten]
    made += [
        Training(protocol, "pra:0.1", 0, defense=defense, attacked=(100,))
        for defense in DEFENDED
        for protocol in ("fedgh", "fedavg")
    ]
    if size == TOY:
        first = {(one.protocol, one.models, one.defense): one for one in reversed(made)}
        made = [
            dataclasses.replace(one, models="cnn5" if one.models == TEN else one.models,
                                attacked=(2,) if one.attacked else ())
            for one in reversed(first.values())
        ]  # fmt: skip
    return made


def jobs(size: str, given: Sequence[str]) -> list[Job]:
    """The jobs of a campaign in order: at published size each training, then its attacks.

    On CPUs an attack takes longer than a training, so all trainings come first.

    Args:
        given: words behind every job's name.
    """

    def pairs() -> Iterator[tuple[Job, list[Job]]]:
        train_minutes, suite_minutes = SIZES[size].minutes
        for one in trainings(size):
            minutes = 8.0 if one.models == TEN else train_minutes
            words = ("benchmarks/campaign.py", one.name, "--size", size, *given)
            yield (
                Job(one.name, f"training {one.models}", minutes, words),
                [
                    Job(
                        f"{one.name}-r{round:03d}",
                        f"suite {one.protocol}",
                        suite_minutes,
                        (words[0], f"{one.name}-r{round:03d}", *words[2:]),
                        after=one.name,
                    )
                    for round in one.attacked
                    if protocols.get(one.protocol).uploads
                ],
            )

    found = list(pairs())
    if size == TOY:  # one suite for each kind of upload
        first = {protocols.get(one.protocol).uploads: one.name for one in reversed(trainings(TOY))}
        found = [(job, suite if job.name in first.values() else []) for job, suite in found]
    if size == CPU:
        return [job for job, _ in found] + [job for _, suite in found for job in suite]
    return [job for training, suite in found for job in (training, *suite)]


def settings_of(one: Training, size: Size, data: Path) -> TrainSettings:
    """The resolved settings of a training."""
    step = size.step or (TEN_STEP if one.models == TEN else PAPER_STEP[one.partition[:3]])
    given = training_values(
        protocol=one.protocol, dataset=f"npz:{data}", clients=size.clients, rounds=size.rounds,
        partition=one.partition, models=one.models, defense=one.defense or None, seed=one.seed,
    )  # fmt: skip
    single = {
        "train.lr": step, "train.eval_every": MEASURED_EVERY, "train.shared_every": MEASURED_EVERY,
        "record.rounds": list(one.attacked) or [size.rounds],
        **({"data.per_class": size.per_class} if size.per_class else {}),
        **({"model.dim": HETEROGENEOUS_DIM} if one.models != "cnn4" else {}),
    }  # fmt: skip
    values, where = layer_settings(given, nest_assignments(single))
    problems: list[str] = []
    return require_resolved(resolve_training(values, where, problems), problems)


def suite_of(training: TrainSettings, size: Size, round: int) -> list[AttackSettings]:
    """The attacks on a round: on targets made of the fewest images first."""
    problems: list[str] = []
    found = []
    for values in default_suite(training, targets=size.targets):
        evaluation = {**values.get("eval", {}), "round": round, "fewest_first": True}
        found.append(resolve_attack({**values, "eval": evaluation}, {}, problems))
    return [require_resolved(one, problems) for one in found]


def trained(run: Run) -> dict[str, Any]:
    """What is kept of a training: every measured round, its traffic, and what was trained on."""
    frame = run.metrics()
    clients = files.read_table(run.unchanged("clients.csv"), ("round", "client"))
    keep = [c for c in frame if c.startswith("acc_") or c in ("round", "loss")]
    seen = frame[frame["acc_post_local"].notna()][keep]
    return {
        "run": run.name,
        "settings": _without_folders(run.settings.plain()),
        "data_sha256": run.record["data_sha256"],
        "device": run.record["device"],
        "class_counts": run.record["class_counts"],
        "headline": run.settings.protocol.headline,
        "rounds": _rows(seen),
        "clients": _rows(clients),
        "traffic": {
            name: int(frame[name].sum())
            for name in ("up_scalars", "down_scalars", "up_bytes", "down_bytes")
        },
        "seconds_of_training": round(float(run.record["wall_s"]), 1),
    }


def attacked(
    run: Run, suite: Sequence[AttackSettings], device: torch.device, toy: bool
) -> list[dict[str, Any]]:
    """The scores of every attack of a suite, with floors, intervals and n."""
    out = []
    for settings in suite:
        started = time.monotonic()
        if toy:
            few = {name: n for name, n in settings.attack.loops.items()
                   if hasattr(settings.attack, name)}  # fmt: skip
            attack_ = dataclasses.replace(settings.attack, **few)
            settings = dataclasses.replace(settings, attack=attack_)
        entry: dict[str, Any] = {
            "attack": settings.attack.name, "target": settings.target,
            "threat": settings.threat.name, "via": settings.via.name if settings.via else None,
            "settings": settings.plain()["attack"],
        }  # fmt: skip
        out.append(entry)
        try:
            isolation = SAME if toy else AUTO  # a process for each costs more than its attack
            done = attack(run, settings, device=device, wait=True, isolation=isolation)
        except IncompatibleError as error:
            entry |= {"verdict": "refused", "because": str(error)}
            continue
        entry |= {
            "verdict": done.card.verdict.word,
            "because": done.card.verdict.because,
            "round": done.trial.round,
            "counterfactual": done.trial.counterfactual,
            "measures": [
                {key: _rounded(getattr(one, key)) for key in MEASURE}
                for one in done.card.measures
                if one.is_in(TABLE)
            ],
            "seconds": round(time.monotonic() - started, 1),
        }  # fmt: skip
    return out


def _rows(frame: Any) -> list[dict[str, Any]]:
    return [_rounded(row) for row in json.loads(frame.to_json(orient="records"))]


def _rounded(value: Any) -> Any:
    """Numbers to four digits behind the point, as far down as they stand."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(own) for own in value]
    return value


def _without_folders(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the data set's file named and not placed."""
    data = {**settings["data"], "path": Path(settings["data"]["path"]).name}
    return {**settings, "data": data}


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = tools.options(__doc__)
    made.add_argument("name", help="of the job")
    made.add_argument("--size", choices=SIZES, required=True)
    made.add_argument("--data", type=Path, required=True, help="x_train, y_train, x_test, y_test")
    made.add_argument("--runs", type=Path, required=True, help="folder of runs")
    made.add_argument("--device", default="cpu")
    made.add_argument("--out", type=Path, required=True, help="JSON file of what was found")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one job."""
    chosen = parser().parse_args(arguments)
    size = SIZES[chosen.size]
    named = {one.name: one for one in trainings(chosen.size)}
    name, round = chosen.name, None
    if name not in named:
        name, _, last = name.rpartition("-r")
        round = int(last)
    settings, device = settings_of(named[name], size, chosen.data), torch.device(chosen.device)
    run = train(settings, runs=chosen.runs, device=device, wait=True)
    found = trained(run)
    if round is not None:
        kept = ("run", "settings", "data_sha256", "device", "seconds_of_training")
        suite = suite_of(settings, size, round)
        found = {key: found[key] for key in kept}
        found["attacks"] = attacked(run, suite, device, chosen.size == TOY)
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if device.type == "cuda":
        found["gpu_peak_mib"] = torch.cuda.max_memory_allocated(device) >> 20
    files.write_json(chosen.out, found)
    print(f"{chosen.name}: {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
