"""How well do federations over frozen public backbones learn, beside training alone?

Every finished training is a row of DIR/public_backbones.csv at once; one that has a row is not
trained again. Features of the backbones are computed once, into DIR/runs/.features. Usage:

    python benchmarks/public_backbones.py --data FILE.npz [--minutes 60] [--only TEXT]
    python benchmarks/public_backbones.py --data tinyimagenet:FOLDER --clients 50
    python benchmarks/public_backbones.py --table [--only "on FILE"]
    python benchmarks/public_backbones.py --figure TABLE.csv

100 rounds of one local epoch, batch 32, images brought to 128 pixels. Models: `lite0`
for all clients, and `lite0-2` (EfficientNet-Lite 0, 1 and 2 in turn), of which clients train a
projection to 128 values and the head; `lite0-head`, of which they train the head. A seed decides
the partition too. The table has percent after the last round at the moment that a protocol quotes,
mean over seeds and clients, and the difference to training alone of the same client with its 95 %
interval over clients. Clients of one seed share a server, so with few seeds intervals are about
clients of these partitions. Seconds are the least over seeds, features and tests left out.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tools import options

from fedre_privacy import api
from fedre_privacy.core import files
from fedre_privacy.core.errors import ConfigError, DivergedError
from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.eval.report import save_figure
from fedre_privacy.eval.report.comparison import Column, Dot, comparison
from fedre_privacy.protocols.base import protocols

MIXED = "lite0-2"
MODELS: Mapping[str, tuple[str, str]] = {
    "lite0": ("efficientnet-lite0", "projection"),
    "lite0-head": ("efficientnet-lite0", "head"),
    MIXED: ("efficientnet-lite0,efficientnet-lite1,efficientnet-lite2", "projection"),
}
"""Architectures, and what clients train of them."""
WITH_PROJECTION = (
    "local", "fedavg", "fedproto", "fedre", "fedgh", "fedallrep", "lg-fedavg", "fd",
    "fedtgp", "fpl", "fedgen", "fedral",
    "fedre rar", "fedre rsr", "fedre rsp", "fedre vap", "fedre var",
)  # fmt: skip
WITH_HEAD = ("local", "fedpft", "fedcgs", "fedavg", "fedgh", "fedre")
PROTOCOLS = tuple(dict.fromkeys((*WITH_PROJECTION, *WITH_HEAD)))
"""With FedRE's scheme where it is another than its default."""
ONE_ARCHITECTURE = ("fedavg",)
"""Protocols that average whole models."""
ONE_ROUND = ("fedpft", "fedcgs")
"""Protocols that train nothing, so that all of their rounds are the same."""
STEPS: Mapping[str, float] = {"fd": 0.02, "fedtgp": 0.02, "fedral": 0.02}
"""Step sizes in place of the default (0.06), at which these diverge on features of length 33: each
adds to the curvature of the loss along the features' mean. Chosen on seed 0."""
PARTITIONS = ("pra:1.0", "pra:0.1", "pat:2")
SEEDS = (1, 2, 3)
DIM, SIDE = 128, 128


@dataclass(frozen=True)
class Cell:
    """One training; `data` is the name of a file or folder, without its ending."""

    data: str
    clients: int
    models: str
    protocol: str
    partition: str
    seed: int
    rounds: int
    per_class: int


@dataclass(frozen=True)
class Found:
    """What came of it.

    Args:
        own, shared: accuracy at the protocol's moment, mean over clients, on their own test images
            and on the shared test set.
        own_each, shared_each: the same of each client, separated by spaces.
        up, down: bytes that all clients together send and receive in a round.
        seconds: of the training, features left out.
    """

    own: float
    shared: float
    own_each: str
    shared_each: str
    up: float
    down: float
    seconds: float


Rows = dict[Cell, Found]


def cells(data: str, clients: int, rounds: int, per_class: int) -> list[Cell]:
    """All trainings of a data set, in order of what is wanted first."""
    found, name = [], Path(data).stem
    for partition, models, seed in itertools.product(PARTITIONS, MODELS, SEEDS):
        for protocol in WITH_HEAD if MODELS[models][1] == "head" else WITH_PROJECTION:
            if models != MIXED or protocol not in ONE_ARCHITECTURE:
                long = 1 if protocol in ONE_ROUND else rounds
                found.append(
                    Cell(name, clients, models, protocol, partition, seed, long, per_class)
                )
    return found


def read(path: Path) -> Rows:
    """Rows of earlier trainings; none where the file is absent or has other columns."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as text:
        found = csv.DictReader(text)
        if {one.name for one in (*fields(Cell), *fields(Found))} - set(found.fieldnames or ()):
            return {}
        return {_of(Cell, row): _of(Found, row) for row in found}


def _of(kind: Any, row: Mapping[str, str]) -> Any:
    convert: dict[str, Any] = {"int": int, "float": float, "str": str}
    return kind(**{field.name: convert[field.type](row[field.name]) for field in fields(kind)})


def train(cell: Cell, data: str, folder: Path) -> api.Run:
    """The run of one federation, kept so that it can be attacked; one that ended is read back."""
    protocol, *scheme = cell.protocol.split()
    models, trainable = MODELS[cell.models]
    given: dict[str, Any] = {"data.per_class": cell.per_class} if cell.per_class else {}
    if trainable == "projection":
        given["model.dim"] = DIM
    if protocol in STEPS:
        given["train.lr"] = STEPS[protocol]
    if scheme:
        given["protocol.entanglement"] = scheme[0]
    wanted = partial(
        api.train, protocol, data if ":" in data else f"npz:{data}", clients=cell.clients,
        rounds=cell.rounds, seed=cell.seed, partition=cell.partition, models=models,
        runs=folder / "runs", set={
            **given, "model.trainable": trainable, "model.size": SIDE,
            "train.eval_every": min(10, cell.rounds), "record.rounds": [cell.rounds],
        },
    )  # fmt: skip
    try:
        return wanted()
    except ConfigError:  # a run of an earlier call that was stopped
        return wanted(resume=True)


def found_in(run: api.Run, cell: Cell) -> Found:
    """Accuracy, traffic and seconds of a training."""
    frame, moment = run.frame(), protocols.get(cell.protocol.split()[0]).headline
    last = frame.iloc[-1]
    clients = pd.read_csv(run.folder / "clients.csv")
    ended = clients[clients["round"] == cell.rounds].sort_values("client")
    own, shared = (ended[f"acc_{test}{moment}"] for test in ("", "shared_"))
    return Found(
        float(last[f"acc_{moment}"]), float(last[f"acc_shared_{moment}"]),
        " ".join(f"{one:.4f}" for one in own), " ".join(f"{one:.4f}" for one in shared),
        float(last["up_bytes"]), float(last["down_bytes"]), round(frame["wall_s"].sum(), 1),
    )  # fmt: skip


def table(rows: Rows) -> list[list[str]]:
    """Header and rows: a protocol in a setting over its seeds.

    Data sets and numbers of clients have columns where there are several.
    """
    groups: dict[Cell, list[Cell]] = defaultdict(list)
    for cell in rows:
        groups[replace(cell, seed=0)].append(cell)
    out = [
        ["data", "clients", "partition", "models", "protocol", "seeds", "own test images",
         "over training alone", "shared test set", "over training alone", "KiB up a round",
         "KiB down", "seconds"]
    ]  # fmt: skip
    for group in sorted(groups, key=_order):
        same = groups[group]
        line = [
            group.data, str(group.clients), group.partition, group.models, f"`{group.protocol}`",
            str(len(same)),
        ]  # fmt: skip
        for key in ("own", "shared"):
            values = [getattr(rows[cell], key) for cell in same]
            line += [_spread(values), _over(rows, same, key)]
        for key in ("up", "down"):
            mean = statistics.fmean(getattr(rows[c], key) for c in same) / 1024
            line.append("-" if math.isnan(mean) else f"{mean:,.1f}")
        line.append(f"{min(rows[cell].seconds for cell in same):.0f}")
        out.append(line)
    several = [len({line[i] for line in out[1:]}) > 1 for i in range(2)]
    return [[*itertools.compress(line, several), *line[2:]] for line in out]


INTERVAL = re.compile(r"(\S+) \[(\S+), (\S+)\], n")
"""A difference to training alone and its interval, as the table has them."""


def figure(lines: Sequence[Sequence[str]], path: Path) -> None:
    """Differences to training alone: protocols in rows, partitions and test sets in columns.

    Rows of `MIXED` are left to the table: they are those of one architecture again.

    Args:
        lines: of the table, without its header.
        path: of the files without their endings.
    """
    told = {
        (partition, f"{protocol.strip('`')}, {models}"): {"own": own, "shared": shared}
        for partition, models, protocol, _, _, own, _, shared, *_ in lines
        if protocol != "`local`" and models != MIXED
    }
    partitions = dict.fromkeys(partition for partition, _ in told)
    ways = list(dict.fromkeys(way for _, way in sorted(told, key=lambda one: one[0], reverse=True)))
    columns = []
    for partition, key in itertools.product(sorted(partitions, reverse=True), ("own", "shared")):
        dots = []
        for way in ways:
            found = INTERVAL.match(told.get((partition, way), {}).get(key, "-"))
            if found is None:
                dots.append(Dot(None))
                continue
            mean, low, high = map(float, found.groups())
            dots.append(Dot(mean, (high - low) / 2, 0.0))
        columns.append(Column(f"{partition}\n{key} test images", tuple(dots), absent="not run"))
    drawn = comparison(
        ways,
        columns,
        title="Accuracy over training alone, points",
        caption="Means over clients with 95 % intervals; red: training alone.",
    )
    print(save_figure(drawn, path)[0])


def _order(cell: Cell) -> tuple[Any, ...]:
    place = cell.data, cell.clients, cell.partition, cell.models
    return *place, PROTOCOLS.index(cell.protocol), cell.rounds, cell.per_class


def _spread(values: Sequence[float]) -> str:
    if any(map(math.isnan, values)):
        return f"{sum(map(math.isnan, values))} of {len(values)} diverged"
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


def _over(rows: Rows, same: Sequence[Cell], key: str) -> str:
    """Mean difference of clients to training alone with its 95 % interval (Student's t)."""
    pairs = _pairs(rows, same, key)
    if len(pairs) < 2:
        return "-"
    low, high = _interval(pairs)
    return f"{statistics.fmean(pairs):+.1f} [{low:+.1f}, {high:+.1f}], n {len(pairs)}"


def _pairs(rows: Rows, same: Sequence[Cell], key: str) -> list[float]:
    """Differences of clients to their training alone, in points."""
    return [
        100 * (one - other)
        for cell in same
        if cell.protocol != "local" and (alone := _alone(rows, cell)) is not None
        for one, other in zip(_each(rows[cell], key), _each(rows[alone], key), strict=False)
    ]


def _interval(pairs: Sequence[float]) -> tuple[float, float]:
    column = torch.tensor(pairs, dtype=torch.float64)[:, None]
    low, high = cluster_means(column, torch.arange(len(pairs))).interval()
    return float(low), float(high)


def _alone(rows: Rows, cell: Cell) -> Cell | None:
    """Training alone of the same part of the same clients; None where it has no row."""
    wanted = replace(cell, protocol="local")
    found = [one for one in rows if replace(one, rounds=cell.rounds) == wanted]
    return max(found, key=lambda one: one.rounds, default=None)


def _each(found: Found, key: str) -> list[float]:
    return [float(one) for one in getattr(found, f"{key}_each").split()]


def campaign(options: argparse.Namespace, rows: Rows, path: Path) -> None:
    """Train what has no row yet, until the time is over."""
    ends = time.monotonic() + 60 * options.minutes
    wanted = cells(options.data, options.clients, options.rounds, options.per_class)
    chosen = [cell for cell in wanted if options.only in named(cell) and cell not in rows]
    for cell in chosen[: options.first]:
        if time.monotonic() > ends:
            break
        try:
            found = found_in(train(cell, options.data, Path(options.out)), cell)
        except DivergedError:
            found = Found(math.nan, math.nan, "", "", math.nan, math.nan, math.nan)
        rows[cell] = found
        rows.update({one: row for one, row in read(path).items() if one not in rows})
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_csv(path, [asdict(cell) | asdict(found) for cell, found in rows.items()])
        print(
            f"{named(cell)}: own {found.own:.3f}, shared {found.shared:.3f} "
            f"({found.seconds:.0f} s)",
            flush=True,
        )
    print(f"{len(rows)} rows, {sum(cell not in rows for cell in wanted)} left: {path}")


def named(cell: Cell) -> str:
    """A training in one line, which --only searches."""
    named = f"{cell.protocol} {cell.partition} {cell.models} seed {cell.seed}"
    return f"{named} of {cell.clients} clients on {cell.data}"


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = options(__doc__)
    parser.add_argument("--data", help="a data set (NAME:PATH) or FILE.npz")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--out", default="runs/public_backbones", help="folder of rows and runs")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="", help="those whose name holds this text")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--per-class", type=int, default=0, help="images of a class; 0: all")
    parser.add_argument("--table", action="store_true", help="print the table and write its CSV")
    parser.add_argument("--figure", metavar="TABLE.csv", help="draw it: DIR/differences.png")
    parser.add_argument("--first", type=int, help="train at most so many")
    return parser


def main() -> None:
    """Train, or print the table."""
    chosen = parser().parse_args()
    path = Path(chosen.out) / "public_backbones.csv"
    rows = read(path)
    if chosen.figure:
        with Path(chosen.figure).open(newline="", encoding="utf-8") as text:
            head, *lines = csv.reader(text)
        if head[0] != "partition":
            parser().error("one data set and number of clients: make the table with --only TEXT")
        figure(lines, path.parent / "differences")
        return
    if chosen.table and not rows:
        parser().error(f"{path} has no rows yet; train with --data FILE.npz")
    if chosen.table:
        asked = {cell: row for cell, row in rows.items() if chosen.only in named(cell)}
        head, *lines = table(asked)
        with (path.parent / "table.csv").open("w", newline="", encoding="utf-8") as text:
            csv.writer(text, lineterminator="\n").writerows([head, *lines])
        for line in (head, ["---"] * len(head), *lines):
            print(f"| {' | '.join(line)} |")
        return
    if chosen.data is None:
        parser().error("--data is needed, --table or --figure")
    torch.set_num_threads(1)
    campaign(chosen, rows, path)


if __name__ == "__main__":
    main()
