"""How well do the protocols learn, over several seeds, beside training alone?

A campaign of small trainings. Each finished one is a row of DIR/learning.csv at once, in any order,
and a row that exists is not trained again. Usage:

    python benchmarks/learning.py FORM [--data FILE.npz] [--jobs 2] [--minutes 30] [--only TEXT]
    python benchmarks/learning.py FORM --table
    python benchmarks/learning.py FORM --figure

Forms:
server     FedRE whose server descends the sum or the mean of its loss over the pairs of a round,
           FedGH with one pass or 100, and training alone; two partitions, one architecture or five,
           two local steps, 5, 10 or 20 clients (as many pairs a round)
protocols  all protocols and both partitions, with the local step that FedRE's Table 12 has for one
           architecture, and with the best of three

A seed decides the partition too. The best step is chosen on other seeds than those that are
reported; seed 0 was used to choose FedRE's server step and is in neither. The table has means and
standard deviations over seeds, and the difference to training alone of the same seed with its 95 %
interval; of a best step, to training alone with its own best step.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from tools import options

from fedre_privacy import api
from fedre_privacy.core import files
from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.eval.report import save_figure
from fedre_privacy.eval.report.comparison import Column, Dot, comparison
from fedre_privacy.protocols.base import protocols

REPORTED = (1, 2, 3, 4, 5)
CHOOSING = (100, 101)
"""Seeds on which a local step is chosen; no table has them."""
FORMS = ("server", "protocols")
PARTITIONS = ("pra:0.1", "pat:2")
PAPER_STEP = {"pra:0.1": 0.007, "pat:2": 0.008}
"""Local steps of FedRE's Table 12 (Table 10) for CIFAR-10."""
OTHER_STEPS = (0.02, 0.06)
HETEROGENEOUS_DIM = 512
"""Length that the representations of different architectures are brought to."""
WAYS: Mapping[str, Mapping[str, Any]] = {
    "fedre, sum": {"protocol": "fedre", "protocol.server.reduction": "sum"},
    "fedre, mean": {"protocol": "fedre", "protocol.server.reduction": "mean"},
    "local": {"protocol": "local"},
    "fedgh": {"protocol": "fedgh"},
    "fedgh, 100 passes": {"protocol": "fedgh", "protocol.server.epochs": 100},
}
PLAIN = ("fedre, sum", "fedre, mean", "local", "fedgh")


@dataclass(frozen=True)
class Cell:
    """One training: the values that tell it from others, as they stand in the table of rows."""

    way: str
    partition: str
    models: str
    step: float
    clients: int
    seed: int
    per_class: int
    rounds: int

    def setting(self) -> Cell:
        """The same without its seed."""
        return replace(self, seed=0)


@dataclass(frozen=True)
class Found:
    """Accuracy, mean over clients, at both moments: of the last round and of the best measured."""

    local: float
    broadcast: float
    best_local: float
    best_broadcast: float
    seconds: float


Rows = dict[Cell, Found]
COLUMNS = [field.name for kind in (Cell, Found) for field in fields(kind)]


def read(path: Path) -> Rows:
    """Rows of earlier trainings; none where the file is absent."""
    if not path.is_file():
        return {}
    rows = {}
    with path.open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            cell = Cell(
                row["way"], row["partition"], row["models"], float(row["step"]),
                *(int(row[key]) for key in ("clients", "seed", "per_class", "rounds")),
            )  # fmt: skip
            rows[cell] = Found(*(float(row[field.name]) for field in fields(Found)))
    return rows


def write(path: Path, rows: Rows) -> None:
    """Write all rows, replacing the file in one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_csv(path, [asdict(cell) | asdict(found) for cell, found in rows.items()])


def server_cells(size: Mapping[str, int]) -> list[Cell]:
    """The trainings of form `server`, the most telling first.

    Args:
        size: per_class and rounds.
    """

    def grid(seed: int, models: str, clients: int, ways: Sequence[str]) -> list[Cell]:
        partitions = PARTITIONS if clients == 10 else PARTITIONS[:1]
        steps = (0.06, 0.01) if clients == 10 else (0.06,)
        return [
            Cell(way, partition, models, step, clients, seed, **size)
            for partition, step, way in itertools.product(partitions, steps, ways)
        ]

    made: list[tuple[float, list[Cell]]] = []
    for seed in REPORTED:
        made.append((seed, grid(seed, "cnn4", 10, PLAIN)))
        made.append((seed + 1.5, grid(seed, "cnn5", 10, PLAIN)))
        made.append((seed + 2.5, grid(seed, "cnn4", 5, PLAIN) + grid(seed, "cnn4", 20, PLAIN)))
        made.append((seed + 2.6, grid(seed, "cnn4", 10, ["fedgh, 100 passes"])))
    return [cell for _, cells in sorted(made, key=lambda one: one[0]) for cell in cells]


def protocol_cells(size: Mapping[str, int], rows: Rows) -> list[Cell]:
    """The trainings of form `protocols`; those with the best step once it is known."""
    pairs = list(itertools.product(protocols.names(), PARTITIONS))

    def cells(seeds: Sequence[int], name: str, partition: str, step: float) -> list[Cell]:
        return [Cell(name, partition, "cnn4", step, 10, seed, **size) for seed in seeds]

    out = []
    for seed in REPORTED:
        for name, partition in pairs:
            out += cells([seed], name, partition, PAPER_STEP[partition])
    choosing = []
    for name, partition in pairs:
        for step in (PAPER_STEP[partition], *OTHER_STEPS):
            choosing += cells(CHOOSING, name, partition, step)
    best = []
    for name, partition in pairs:
        best += best_cells(name, partition, size, rows)
    return list(dict.fromkeys([*out[: len(pairs)], *choosing, *out, *best]))


def best_cells(name: str, partition: str, size: Mapping[str, int], rows: Rows) -> list[Cell]:
    """The reported trainings of a protocol with its best step; none where it is not known yet."""
    step = best_step(name, partition, size, rows)
    if step is None:
        return []
    return [Cell(name, partition, "cnn4", step, 10, seed, **size) for seed in REPORTED]


def best_step(name: str, partition: str, size: Mapping[str, int], rows: Rows) -> float | None:
    """The step with the highest mean headline accuracy on the seeds for choosing; None: not known.

    The smallest of equals.
    """
    means = {}
    for step in (PAPER_STEP[partition], *OTHER_STEPS):
        wanted = [Cell(name, partition, "cnn4", step, 10, seed, **size) for seed in CHOOSING]
        if not all(cell in rows for cell in wanted):
            return None
        means[step] = statistics.fmean(headline(cell, rows[cell]) for cell in wanted)
    return max(means, key=lambda step: (means[step], -step))


def headline(cell: Cell, found: Found) -> float:
    """The accuracy at the moment that the protocol quotes."""
    protocol = protocols.get(cell.way.split(",")[0])
    return found.broadcast if protocol.headline == "post_broadcast" else found.local


def train(cell: Cell, data: str, device: str) -> Found:
    """Train one federation in a folder that is removed afterwards."""
    started = time.monotonic()
    way = dict(WAYS.get(cell.way, {"protocol": cell.way}))
    protocol = way.pop("protocol")
    more: dict[str, Any] = {"model.dim": HETEROGENEOUS_DIM} if cell.models == "cnn5" else {}
    with tempfile.TemporaryDirectory() as folder:
        run = api.train(
            protocol, f"npz:{data}", clients=cell.clients, rounds=cell.rounds,
            partition=cell.partition, models=cell.models, seed=cell.seed, runs=folder,
            device=device, set={
                "data.per_class": cell.per_class, "train.lr": cell.step, "train.eval_every": 5,
                "record.truth": False, **more, **way,
            },
        )  # fmt: skip
        frame = run.frame()
    local, broadcast = frame["acc_post_local"], frame["acc_post_broadcast"]
    return Found(
        local.iloc[-1], broadcast.iloc[-1], local.max(), broadcast.max(),
        round(time.monotonic() - started, 1),
    )  # fmt: skip


def campaign(
    cells: Sequence[Cell], rows: Rows, options: argparse.Namespace, path: Path, ends: float
) -> None:
    """Train what has no row yet, several at once, and write each row when it is there.

    Args:
        ends: no training begins after this moment (`time.monotonic`).
    """
    missing = iter([cell for cell in cells if cell not in rows])
    failed = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        options.jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        running: dict[Future[Found], Cell] = {}
        while True:
            while len(running) < options.jobs and time.monotonic() < ends:
                cell = next(missing, None)
                if cell is None:
                    break
                running[pool.submit(train, cell, options.data, options.device)] = cell
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(done)
                try:
                    found = done.result()
                except Exception as error:  # one training that diverges must not end the others
                    failed += 1
                    print(f"FAILED {named(cell)}: {error}", flush=True)
                    continue
                rows[cell] = found
                write(path, rows)
                print(
                    f"{named(cell)}: local {found.local:.3f}, broadcast {found.broadcast:.3f} "
                    f"({found.seconds:.0f} s)",
                    flush=True,
                )
    left = sum(cell not in rows for cell in cells)
    print(f"{len(rows)} rows, {left} left of this form, {failed} failed: {path}")


def named(cell: Cell) -> str:
    """A cell in words; `--only` looks for its text in them."""
    return (
        f"{cell.way} {cell.partition} {cell.models} step {cell.step:g} "
        f"{cell.clients} clients seed {cell.seed}"
    )


@dataclass(frozen=True)
class Line:
    """One setting over its seeds, accuracies in percent.

    Args:
        local, broadcast: (mean, standard deviation) after local training and after the broadcast.
        over: headline minus that of training alone with the same seed and setting: mean and the
            ends of its interval; None: nothing to compare with.
        pairs: seeds of that difference.
    """

    cell: Cell
    seeds: int
    local: tuple[float, float]
    broadcast: tuple[float, float]
    over: tuple[float, float, float] | None
    pairs: int


def lines(rows: Rows) -> Iterator[Line]:
    """Means over the reported seeds of every setting."""
    groups: dict[Cell, list[Cell]] = defaultdict(list)
    for cell in rows:
        if cell.seed in REPORTED:
            groups[cell.setting()].append(cell)
    for setting, cells in groups.items():
        differences = [
            headline(cell, rows[cell]) - rows[alone].local
            for cell in cells
            if (alone := replace(cell, way="local")) in rows and cell.way != "local"
        ]
        yield Line(
            setting,
            len(cells),
            _spread([rows[cell].local for cell in cells]),
            _spread([rows[cell].broadcast for cell in cells]),
            _interval(differences) if differences else None,
            len(differences),
        )


def best_lines(rows: Rows, size: Mapping[str, int]) -> Iterator[Line]:
    """The same with the best of three steps, against training alone with its own best step."""
    for partition in PARTITIONS:
        alone = best_cells("local", partition, size, rows)
        for name in protocols.names():
            cells = best_cells(name, partition, size, rows)
            if not cells or not all(cell in rows for cell in cells):
                continue
            differences = (
                [
                    headline(cell, rows[cell]) - rows[other].local
                    for cell, other in zip(cells, alone, strict=True)
                    if name != "local" and other in rows
                ]
                if alone
                else []
            )
            yield Line(
                cells[0].setting(),
                len(cells),
                _spread([rows[cell].local for cell in cells]),
                _spread([rows[cell].broadcast for cell in cells]),
                _interval(differences) if differences else None,
                len(differences),
            )


def _spread(values: Sequence[float]) -> tuple[float, float]:
    sd = statistics.stdev(values) if len(values) > 1 else math.nan
    return 100 * statistics.fmean(values), 100 * sd


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval by Student's t; NaN ends for one value."""
    column = 100 * torch.tensor(values, dtype=torch.float64)[:, None]
    low, high = cluster_means(column, torch.arange(len(values))).interval()
    return float(column.mean()), float(low), float(high)


def table(form: str, rows: Rows, size: Mapping[str, int]) -> str:
    """Markdown: a line for each setting of a form with its seeds."""
    if form == "protocols":
        return "\n".join(
            line
            for title, found in parts_of_protocols(rows, size).items()
            for line in (f"**{title}**", "", *markdown(found), "")
        )
    shown = {cell.setting() for cell in server_cells(size)}
    found = [line for line in lines(rows) if line.cell in shown]
    return "\n".join([*markdown(found), "", mean_over_sum(rows, size)])


def parts_of_protocols(rows: Rows, size: Mapping[str, int]) -> dict[str, list[Line]]:
    """The tables of form `protocols`: with the paper's step, and with each protocol's best."""
    paper = [
        line
        for line in lines(rows)
        if line.cell.step == PAPER_STEP.get(line.cell.partition)
        and line.cell in {replace(cell, seed=0) for cell in protocol_cells(size, rows)}
    ]
    return {"the paper's step": paper, "best of three steps": list(best_lines(rows, size))}


def markdown(found: Sequence[Line]) -> list[str]:
    """Rows of a table, settings that are alike together."""
    head = ("way", "partition", "models", "local step", "clients", "seeds", "after local training")
    out = [
        f"| {' | '.join((*head, 'after the broadcast', 'headline over training alone'))} |",
        "|---" * (len(head) + 2) + "|",
    ]
    for line in sorted(found, key=_order):
        over = "-"
        if line.over is not None:
            mean, low, high = line.over
            ends = "" if math.isnan(low) else f" [{low:+.1f}, {high:+.1f}]"
            over = f"{mean:+.1f}{ends} (n {line.pairs})"
        words = (
            line.cell.way, line.cell.partition, line.cell.models,
            f"{line.cell.step:g}", str(line.cell.clients), str(line.seeds),
            _percent(line.local), _percent(line.broadcast), over,
        )  # fmt: skip
        out.append(f"| {' | '.join(words)} |")
    return out


def mean_over_sum(rows: Rows, size: Mapping[str, int]) -> str:
    """FedRE with the mean against the sum after the broadcast, paired by setting and seed."""
    pairs = {
        cell: 100 * (rows[cell].broadcast - rows[other].broadcast)
        for cell in server_cells(size)
        if cell.way == "fedre, mean"
        and cell in rows
        and (other := replace(cell, way="fedre, sum")) in rows
    }
    if not pairs:
        return "no pair of mean and sum yet"
    values = torch.tensor(list(pairs.values()), dtype=torch.float64)[:, None]
    low, high = cluster_means(values, torch.tensor([cell.seed for cell in pairs])).interval()
    seeds = sorted({cell.seed for cell in pairs})
    ends = f" [{float(low):+.1f}, {float(high):+.1f}]" if len(seeds) > 1 else ""
    return (
        f"FedRE after the broadcast, mean minus sum: {float(values.mean()):+.1f}{ends} points over "
        f"{len(pairs)} pairs of setting and seed (seeds {', '.join(map(str, seeds))}); the mean is "
        f"better in {int((values > 0).sum())}, smallest difference {float(values.min()):+.1f}"
    )


def _percent(value: tuple[float, float]) -> str:
    mean, sd = value
    return f"{mean:.1f}" + ("" if math.isnan(sd) else f" ± {sd:.1f}")


def _order(line: Line) -> tuple[Any, ...]:
    cell = line.cell
    return cell.models, cell.clients, cell.partition, -cell.step, cell.way


def form_cells(form: str, size: Mapping[str, int], rows: Rows) -> list[Cell]:
    """The trainings of a form, those that matter most first."""
    return server_cells(size) if form == "server" else protocol_cells(size, rows)


def figure(form: str, rows: Rows, size: Mapping[str, int], path: Path) -> None:
    """Ways in rows, settings in columns; accuracy of the headline, red: training alone.

    Args:
        path: of the files without their endings.

    Raises:
        ConfigError: no row to draw.
    """
    columns: dict[str, dict[str, Line]] = defaultdict(dict)
    if form == "protocols":
        for title, found in parts_of_protocols(rows, size).items():
            for line in sorted(found, key=_order):
                columns[f"{line.cell.partition}\n{title}"][line.cell.way] = line
    else:
        shown = {cell.setting() for cell in server_cells(size)}
        for line in sorted(lines(rows), key=_order):
            cell = line.cell
            if cell in shown:
                title = (
                    f"{cell.partition}, {cell.models}\nstep {cell.step:g}, {cell.clients} clients"
                )
                columns[title][cell.way] = line
    ways = sorted({way for column in columns.values() for way in column})
    drawn = comparison(
        ways,
        [
            Column(title, tuple(_dot(column.get(way), column.get("local")) for way in ways),
                   absent="not run")
            for title, column in columns.items()
        ],
        title="Accuracy, percent",
        caption="Mean and standard deviation over seeds at the moment that the protocol quotes; "
        "red: training alone.",
    )  # fmt: skip
    print(save_figure(drawn, path)[0])


def _dot(line: Line | None, alone: Line | None) -> Dot:
    """A mean with its deviation, beside training alone."""
    if line is None:
        return Dot(None)
    moment = protocols.get(line.cell.way.split(",")[0]).headline
    mean, sd = line.broadcast if moment == "post_broadcast" else line.local
    return Dot(mean, None if math.isnan(sd) else sd, alone.local[0] if alone else None)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = options(__doc__)
    made.add_argument("form", choices=FORMS)
    made.add_argument("--data", default="", metavar="FILE.npz", help="CIFAR-10 as .npz")
    made.add_argument("--jobs", type=int, default=1, help="trainings at once, one thread each")
    made.add_argument("--minutes", type=float, default=math.inf, help="start none after this long")
    made.add_argument("--only", default="", metavar="TEXT", help="trainings that hold this text")
    made.add_argument("--per-class", type=int, default=100, help="images of each class")
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--first", type=int, default=None, help="so many trainings at most")
    made.add_argument("--device", default="cpu")
    made.add_argument("--out", type=Path, default=Path("runs/learning"), metavar="DIR")
    made.add_argument("--table", action="store_true", help="print what the rows say")
    made.add_argument("--figure", action="store_true", help="draw it: DIR/FORM.png and .pdf")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Train what is missing, or print or draw what is there."""
    chosen = parser().parse_args(given)
    path = chosen.out / "learning.csv"
    rows = read(path)
    size = {"per_class": chosen.per_class, "rounds": chosen.rounds}
    if chosen.table:
        print(table(chosen.form, rows, size))
    if chosen.figure:
        figure(chosen.form, rows, size, chosen.out / chosen.form)
    if chosen.table or chosen.figure:
        return 0
    if not chosen.data:
        print("--data FILE.npz is needed to train; --table and --figure read the rows there are.")
        return 2
    ends = time.monotonic() + 60 * chosen.minutes
    tried: set[Cell] = set()
    while time.monotonic() < ends:  # a best step that became known has trainings of its own
        cells = [cell for cell in form_cells(chosen.form, size, rows) if chosen.only in named(cell)]
        cells = cells[: chosen.first]
        if tried.issuperset(cells):
            break
        campaign([cell for cell in cells if cell not in tried], rows, chosen, path, ends)
        tried.update(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
