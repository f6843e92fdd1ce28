"""How many rounds of FedRE's mixtures give prototypes away where nobody trains the extractor?

Federations over EfficientNet-Lite0 (128 px) of `--clients` clients: with `--trainable head`
prototypes stand still, with `projection` they move with the projection. The attacker holds no
extractor (threat model `frozen-extractor`). For each client the latest 1, 2, ... rounds are
observed, until all of its prototypes are right to a thousandth (*solved*), and until all have a
certificate. Usage:

    python benchmarks/frozen_mixtures.py --data FILE.npz [--only TEXT]
    python benchmarks/frozen_mixtures.py --table

Every client is a row of DIR/frozen_mixtures.csv; a federation that has rows is not trained again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from experiments import attacking, training
from tools import options
from torch import Tensor

from fedre_privacy.attacks.disentangle import Disentangle
from fedre_privacy.attacks.mixtures.mixing import mixings
from fedre_privacy.core import files
from fedre_privacy.core.outcomes import CERTIFIED_WITHIN
from fedre_privacy.core.types import Observation
from fedre_privacy.eval.prototype_scores import TruePrototypes
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.prototypes import PrototypeTrial

SCHEMES = ("rap", "rar", "rsp", "rsr", "vap", "var")
PARTITIONS: Mapping[str, Mapping[str, Any]] = {
    "pra:1.0": {"name": "pra", "alpha": 1.0},
    "pra:0.1": {"name": "pra", "alpha": 0.1},
    "pat:2": {"name": "pat", "classes": 2},
}
SEEDS = (1, 2, 3)
SOLVED_WITHIN = 1e-3
NEVER = 0
"""In place of a number of rounds that was not among those recorded."""


@dataclass(frozen=True)
class Federation:
    """One training."""

    trainable: str
    scheme: str
    partition: str
    seed: int
    rounds: int


@dataclass(frozen=True)
class Row(Federation):
    """What an attacker of one client gets.

    Args:
        kind: how it mixes, as its encodings show.
        classes: of the client: prototypes.
        solved, certified: rounds observed from which on all prototypes are solved, all certified.
        answered, right, sure, sure_right: from all rounds, the number of prototypes with an
            answer, within `CERTIFIED_WITHIN`, with a certificate, and of these within it.
        error: median relative error from all rounds.
        floor: the same of the client's last upload as every answer.
    """

    client: int
    kind: str
    classes: int
    solved: int
    certified: int
    answered: int
    right: int
    sure: int
    sure_right: int
    error: float
    floor: float


def federations(trainable: Sequence[str], rounds: int) -> list[Federation]:
    """All trainings."""
    grid = itertools.product(trainable, SCHEMES, PARTITIONS, SEEDS)
    return [Federation(*one, rounds) for one in grid]


def rows_of(one: Federation, asked: argparse.Namespace) -> Iterator[Row]:
    """Train a federation, and attack its clients from 1, 2, ... rounds."""
    run = training(
        {
            "data": {"name": "npz", "path": asked.data, "per_class": asked.per_class},
            "partition": PARTITIONS[one.partition],
            "protocol": {"name": "fedre", "entanglement": {"name": one.scheme}},
            "model": {"name": "efficientnet-lite0", "trainable": one.trainable, "size": asked.size,
                      "dim": 128 if one.trainable == "projection" else None},
            "train": {"clients": asked.clients, "rounds": one.rounds, "seed": one.seed,
                      "eval_every": one.rounds},
            "record": {"keep_every": 1},
        },
        Path(asked.out) / "runs",
    )  # fmt: skip
    trial = prepare_attack(run, attacking({"attack": "disentangle", "threat": "frozen-extractor"}))
    if not isinstance(trial, PrototypeTrial):
        raise TypeError("the trial is not about prototypes")
    seen, truth = trial.observation, trial.truth
    found = [_scores(seen, truth, rounds) for rounds in range(1, one.rounds + 1)]
    floors = truth.compare(truth.floors["upload"], truth.clients, truth.labels).relative_error
    for mixing in mixings(seen):
        own = truth.clients == mixing.client
        errors = [error[own] for error, _ in found]
        sure = [certified[own] for _, certified in found]
        right = errors[-1] <= CERTIFIED_WITHIN
        yield Row(
            **asdict(one), client=mixing.client, kind=str(mixing.kind), classes=int(own.sum()),
            solved=_from([bool((error <= SOLVED_WITHIN).all()) for error in errors]),
            certified=_from([bool(every.all()) for every in sure]),
            answered=int(errors[-1].isfinite().sum()), right=int(right.sum()),
            sure=int(sure[-1].sum()), sure_right=int((sure[-1] & right).sum()),
            error=float(errors[-1].nanmedian()), floor=float(floors[own].median()),
        )  # fmt: skip


def _scores(seen: Observation, truth: TruePrototypes, rounds: int) -> tuple[Tensor, Tensor]:
    """Relative error and certificate of each true prototype, from the latest rounds."""
    found = Disentangle(rounds=rounds)(seen)
    error = truth.compare(found.vectors, found.clients, found.labels).relative_error
    asked = zip(truth.clients.tolist(), truth.labels.tolist(), strict=True)
    sure = found.certified.tolist()
    certified = dict(
        zip(zip(found.clients.tolist(), found.labels.tolist(), strict=True), sure, strict=True)
    )
    return error, torch.tensor([certified.get(one, False) for one in asked])


def _from(holds: Sequence[bool]) -> int:
    """The number of rounds from which on it holds; `NEVER` where it does not in the end."""
    lost = [rounds for rounds, one in enumerate(holds, start=1) if not one]
    first = lost[-1] + 1 if lost else 1
    return first if first <= len(holds) else NEVER


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Header and rows: a scheme of a partition, over seeds and clients of two classes."""
    out = [
        ["trained", "scheme", "partition", "seeds", "clients", "prototypes",
         "solved from rounds - classes", "certified from rounds - classes", "solved",
         "within a tenth", "certified", "of these right", "median error", "last upload"]
    ]  # fmt: skip
    kept = [row for row in rows if row.classes > 1]
    for _, group in itertools.groupby(sorted(kept, key=_order), key=_order):
        own = list(group)
        out.append([
            own[0].trainable, f"`{own[0].scheme}`", own[0].partition,
            str(len({row.seed for row in own})), str(len(own)),
            str(sum(row.classes for row in own)), _beyond(own, "solved"), _beyond(own, "certified"),
            f"{sum(row.solved > 0 for row in own)} of {len(own)} clients",
            *(str(sum(getattr(row, n) for row in own)) for n in ("right", "sure", "sure_right")),
            _median([row.error for row in own]), _median([row.floor for row in own]),
        ])  # fmt: skip
    return out


def _order(row: Row) -> tuple[str, int, int]:
    return row.trainable, SCHEMES.index(row.scheme), list(PARTITIONS).index(row.partition)


def _beyond(rows: Sequence[Row], what: str) -> str:
    """Median and range of the rounds needed beyond the number of classes."""
    needed = [getattr(row, what) - row.classes for row in rows if getattr(row, what) != NEVER]
    if not needed:
        return "never"
    return f"{statistics.median(needed):g} [{min(needed)}, {max(needed)}]"


def _median(values: Sequence[float]) -> str:
    finite = [value for value in values if not math.isnan(value)]
    return f"{statistics.median(finite):.2g}" if finite else "no answer"


def read(path: Path) -> list[Row]:
    """Rows of earlier federations; none where the file is absent."""
    if not path.is_file():
        return []
    convert: dict[Any, Any] = {"int": int, "float": float, "str": str}
    with path.open(newline="", encoding="utf-8") as text:
        return [
            Row(**{f.name: convert[f.type](row[f.name]) for f in fields(Row)})
            for row in csv.DictReader(text)
        ]


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = options(__doc__)
    made.add_argument("--data", help="images and labels (.npz)")
    made.add_argument("--out", default="runs/frozen_mixtures", help="folder of rows and runs")
    made.add_argument("--only", default="", help="federations whose name holds this text")
    made.add_argument("--first", type=int, help="train at most so many")
    made.add_argument("--trainable", default="head,projection", help="what clients train")
    made.add_argument("--rounds", type=int, default=40)
    made.add_argument("--clients", type=int, default=10)
    made.add_argument("--per-class", type=int, default=100, help="images of a class")
    made.add_argument("--size", type=int, default=128, help="pixels of the backbone's input")
    made.add_argument("--table", action="store_true", help="print the table and write its CSV")
    return made


def main() -> None:
    """Train and attack what has no rows yet, or print the table."""
    asked = parser().parse_args()
    path = Path(asked.out) / "frozen_mixtures.csv"
    rows = read(path)
    if asked.table and not rows:
        parser().error(f"{path} has no rows yet; train with --data FILE.npz")
    if asked.table:
        head, *lines = table(rows)
        files.write_csv(
            path.parent / "table.csv", [dict(zip(head, line, strict=True)) for line in lines]
        )
        for line in (head, ["---"] * len(head), *lines):
            print(f"| {' | '.join(line)} |")
        return
    if asked.data is None:
        parser().error("--data FILE.npz is needed, or --table")
    torch.set_num_threads(1)
    done = {Federation(*(getattr(row, f.name) for f in fields(Federation))) for row in rows}
    wanted = [
        one
        for one in federations(asked.trainable.split(","), asked.rounds)
        if asked.only in _named(one) and one not in done
    ]
    for one in wanted[: asked.first]:
        made = list(rows_of(one, asked))
        rows += made
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_csv(path, [asdict(row) for row in rows])
        print(
            f"{_named(one)}: {sum(row.solved > 0 for row in made)} of {len(made)} clients solved, "
            f"{sum(row.certified > 0 for row in made)} certified",
            flush=True,
        )


def _named(one: Federation) -> str:
    return f"{one.trainable} {one.scheme} {one.partition} seed {one.seed}"


if __name__ == "__main__":
    main()
