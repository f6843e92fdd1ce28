"""What do the uploads of federations over public backbones give away?

    python benchmarks/backbone_leakage.py --data FILE.npz [--only TEXT]
    python benchmarks/backbone_leakage.py --table

Attacks the last round of the federations of public_backbones.py with attacks that take seconds, and
keeps the answers in DIR/leakage.csv; what has a row is not attacked again. A federation that is not
in DIR/runs is trained first. The table has means over seeds, in brackets the floor that each attack
is held against and what the same attack says of noise in place of the upload, and n. Noise has the
mean and spread of what is sent, in every dimension; labels, their encodings and counts stay as they
are. Where clients send how many images of each class they have, nobody has to attack for that:
``sent``.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from public_backbones import PARTITIONS, PROTOCOLS, Cell, cells, named, train
from tools import RowsFile, noise_like, options
from torch import Tensor

from fedre_privacy import api
from fedre_privacy.attacks.base import Context, attacks, can_read
from fedre_privacy.core.artifacts import Artifact, ClassStatistics, Content, Counts
from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.types import Observation
from fedre_privacy.eval import Card
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import require_resolved, resolve_attack

COUNTED = {Counts, ClassStatistics}
"""Kinds that hold how many images of each class a client has, so that nobody has to attack."""
CLIENTS = 10
TARGETS = 100
"""Vectors of a federation that are looked for among candidates, at most."""


@dataclass(frozen=True)
class Question:
    """A column of the table.

    Args:
        title: its heading, with the floor.
        attacks: that answer it; the first one that reads what a protocol sends is run.
        measure: of its card.
        threat: what the server knows.
    """

    title: str
    attacks: tuple[str, ...]
    measure: str
    threat: str


QUESTIONS: Mapping[str, Question] = {
    "classes": Question("classes held, Jaccard (all classes)", ("labels",), "jaccard", "realistic"),
    "shares": Question("error of their shares (shares of all)", ("labels",), "l1", "realistic"),
    "members": Question(
        "members, AUC (model alone; noise)",
        ("membership", "loss-membership", "statistics-membership"),
        "auc",
        "strong",
    ),
    "image": Question(
        "image first among 100 (guess; noise)", ("nearest-candidate",), "retrieved1", "strong"
    ),
    "representations": Question(
        "representations found (class mean; noise)", ("unpool",), "representations_found", "strong"
    ),
}
KEY = ("models", "protocol", "partition", "seed")
FIELDS = (*KEY, "question", "attack", "n", "value", "floor", "noise", "seconds")
OPEN = {Content.LABEL, Content.LABEL_ENCODING, Content.COUNT}
"""What stays as it is where the rest of an upload is noise."""
Row = Mapping[str, object]


def answers(cell: Cell, data: str, folder: Path) -> Iterator[Row]:
    """One row for each question that something which the protocol sends answers."""
    run = train(cell, data, folder)
    uploads = protocols.get(cell.protocol.split()[0]).uploads
    able = {
        name for name in attacks.names() if any(can_read(attacks.get(name), k) for k in uploads)
    }
    if COUNTED & set(uploads):
        able.discard("labels")
    done: dict[str, tuple[Card, Card | None, float]] = {}
    for name, question in QUESTIONS.items():
        attack = next((one for one in question.attacks if one in able), None)
        if attack is None:
            continue
        if attack not in done:
            began = time.process_time()
            found = _scores(run, attack, question.threat)
            done[attack] = *found, time.process_time() - began
        card, control, seconds = done[attack]
        measure = card.get(question.measure)
        noise = None if control is None else control.get(question.measure).value
        yield {
            **{key: getattr(cell, key) for key in KEY}, "question": name, "attack": attack,
            "n": measure.n, "value": _number(measure.value), "floor": _number(measure.floor),
            "noise": _number(noise), "seconds": round(seconds, 1),
        }  # fmt: skip


def _scores(run: api.Run, attack: str, threat: str) -> tuple[Card, Card | None]:
    """The scores of an attack on the uploads, and on noise; None where it refuses noise.

    Labels are read off what stays as it is. Neither figures nor pages are written.
    """
    problems: list[str] = []
    given = {"attack": attack, "threat": threat, "eval": {"targets": TARGETS}}
    settings = require_resolved(resolve_attack(given, {}, problems), problems)
    trial = prepare_attack(run, settings)
    seen, context = trial.observation, Context(trial.attack_seed)
    card = trial.score(settings.attack(seen, context))
    if attack == "labels":
        return card, None
    try:
        return card, trial.score(settings.attack(_of_noise(seen, trial.attack_seed), context))
    except FedreError:
        return card, None


def _of_noise(seen: Observation, seed: int) -> Observation:
    """What an attacker sees, with noise for everything but labels and counts in all uploads."""
    generator = torch.Generator().manual_seed(seed)
    targets, uploads = (
        tuple(
            replace(upload, artifacts=tuple(_noise_for(one, generator) for one in upload.artifacts))
            for upload in given
        )
        for given in (seen.targets, seen.uploads)
    )
    return replace(seen, targets=targets, uploads=uploads)


def _noise_for(artifact: Artifact, generator: torch.Generator) -> Artifact:
    def drawn(values: Any) -> Any:
        if isinstance(values, Mapping):
            return {name: drawn(one) for name, one in values.items()}
        if not isinstance(values, Tensor) or not values.is_floating_point():
            return values
        return noise_like(values, generator)

    changed = {
        field.name: drawn(getattr(artifact, field.name))
        for field in fields(artifact)
        if field.metadata.get("content") not in OPEN
    }
    return replace(artifact, **changed)


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4f}"


def table(path: Path) -> list[list[str]]:
    """Header and rows: a protocol in a setting over its seeds."""
    groups: dict[tuple[str, str, str], dict[str, list[Mapping[str, str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with path.open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            setting = row["partition"], row["models"], row["protocol"]
            groups[setting][row["question"]].append(row)
    out = [["partition", "models", "protocol", "seeds", *(q.title for q in QUESTIONS.values())]]
    for setting in sorted(groups, key=_order):
        partition, models, protocol = setting
        found = groups[setting]
        seeds = {row["seed"] for rows in found.values() for row in rows}
        cells = [_words(found.get(question, ())) for question in QUESTIONS]
        if COUNTED & set(protocols.get(protocol.split()[0]).uploads):
            cells[:2] = ["sent"] * 2
        out.append([partition, models, f"`{protocol}`", str(len(seeds)), *cells])
    return out


def _order(setting: tuple[str, str, str]) -> tuple[int, str, int]:
    partition, models, protocol = setting
    return PARTITIONS.index(partition), models, PROTOCOLS.index(protocol)


def _words(rows: Sequence[Mapping[str, str]]) -> str:
    """Mean, floor and n of the answers of all seeds."""
    if not rows:
        return "-"
    value, floor, noise = (
        [float(row[key]) for row in rows if row[key]] for key in ("value", "floor", "noise")
    )
    if not value:
        return "no answer"
    beside = f" ({statistics.fmean(floor):.2f}" if floor else " (-"
    beside += f"; {statistics.fmean(noise):.2f})" if noise else ")"
    return f"{statistics.fmean(value):.2f}{beside}, n {sum(int(row['n']) for row in rows)}"


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = options(__doc__)
    made.add_argument("--data", help="images and labels (.npz)")
    made.add_argument("--out", default="runs/public_backbones", help="folder of rows and runs")
    made.add_argument("--only", default="", help="federations whose name holds this text")
    made.add_argument("--rounds", type=int, default=100)
    made.add_argument("--per-class", type=int, default=0, help="images of a class; 0: all")
    made.add_argument("--first", type=int, help="attack at most so many federations")
    made.add_argument("--table", action="store_true", help="print the table and write its CSV")
    return made


def main() -> None:
    """Attack what has no row yet, or print the table."""
    chosen = parser().parse_args()
    folder = Path(chosen.out)
    file = RowsFile(folder / "leakage.csv", FIELDS, KEY)
    if chosen.table:
        if not file.path.is_file():
            parser().error(f"{file.path} is absent; attack with --data FILE.npz")
        head, *lines = table(file.path)
        with (folder / "leakage_table.csv").open("w", newline="", encoding="utf-8") as text:
            csv.writer(text, lineterminator="\n").writerows([head, *lines])
        for line in (head, ["---"] * len(head), *lines):
            print(f"| {' | '.join(line)} |")
        return
    if chosen.data is None:
        parser().error("--data FILE.npz is needed, or --table")
    torch.set_num_threads(1)
    done = file.done()
    wanted = [
        cell
        for cell in cells(chosen.data, CLIENTS, chosen.rounds, chosen.per_class)
        if cell.protocol != "local"
        and chosen.only in named(cell)
        and tuple(str(getattr(cell, name)) for name in KEY) not in done
    ]
    for cell in wanted[: chosen.first]:
        found = list(answers(cell, chosen.data, folder))
        file.add(found)
        said = ", ".join(f"{one['question']} {one['value'] or 'no answer'}" for one in found)
        print(f"{named(cell)}: {said}", flush=True)


if __name__ == "__main__":
    main()
