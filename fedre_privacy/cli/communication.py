"""``fedre-benchmark --communication``: published tables, recomputed side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedre_privacy.core.errors import ConfigError, unknown_name
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.core.units import human_bytes, plural
from fedre_privacy.reproduction.published_tables import DATA_SETS

from .command import command
from .options import add_output_options, add_plugin_option
from .output import Output

if TYPE_CHECKING:  # a help page counts nothing
    from fedre_privacy.reproduction.communication import ReportedCell
    from fedre_privacy.reproduction.data_shares import Shares
    from fedre_privacy.reproduction.measured_traffic import MeasuredTraffic, Spread

SHORT = {"homogeneous": "homo", "heterogeneous": "hete"}


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-benchmark",
        usage="fedre-benchmark --communication [options]",
        allow_abbrev=False,
        description="Print published tables beside the same numbers recomputed here.",
    )
    made.add_argument(
        "--communication",
        action="store_true",
        help="scalars and bytes of one round: Tables 2, 4 and 11 of FedRE, Table 4 of FedRAL",
    )
    group = made.add_argument_group("communication")
    group.add_argument(
        "--dataset",
        nargs="+",
        metavar="D",
        help=f"data sets of Table 11 to print: {', '.join(DATA_SETS)} (default: all)",
    )
    labels = group.add_mutually_exclusive_group()
    labels.add_argument(
        "--labels",
        type=Path,
        metavar="FILE.npy",
        help="CIFAR-10's 60,000 labels, training then test part (default: class sizes alone, "
        "which give the same counts)",
    )
    labels.add_argument("--data-dir", metavar="DIR", help="take them from CIFAR-10's files in DIR")
    group.add_argument(
        "--measured",
        nargs="+",
        default=[],
        type=Path,
        metavar="RUN",
        help="recorded runs, by folder or by name in --runs-dir, whose traffic to show as well",
    )
    group.add_argument("--csv", type=Path, metavar="FILE", help="write the cells of Table 11")
    group.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of run folders (default: runs)",
    )
    add_plugin_option(group)
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv)


def run(options: argparse.Namespace, output: Output) -> int:
    """Print published tables beside the same numbers recomputed; return the exit code."""
    from fedre_privacy.core.files import write_csv
    from fedre_privacy.reproduction import communication
    from fedre_privacy.reproduction.data_shares import cifar10_labels, read_labels, share_out
    from fedre_privacy.reproduction.measured_traffic import measure_traffic
    from fedre_privacy.runs.run import find_run

    import_plugins(options.plugin)
    keys = _check_options(options)
    runs = [measure_traffic(find_run(path, options.runs_dir)) for path in options.measured]
    shares = {key: share_out(key) for key in keys}
    if options.labels is not None:
        labels, source = read_labels(options.labels), str(options.labels)
        shares["cifar10"] = share_out("cifar10", labels, source)
    elif options.data_dir is not None:
        labels, source = cifar10_labels(options.data_dir), f"CIFAR-10 in {options.data_dir}"
        shares["cifar10"] = share_out("cifar10", labels, source)
    cells = [_with_runs(cell, runs) for cell in communication.table_11(shares)]
    for key, own in shares.items():
        _print_data_set(key, own, [cell for cell in cells if cell.data_set == key], output)
    tables: dict[str, Sequence[Any]] = {
        "FedRE Table 11": cells,
        "FedRE Table 2": communication.table_2(cells) if "cifar100" in keys else [],
        "FedRE Table 4": communication.table_4(shares["tinyimagenet"])
        if "tinyimagenet" in keys else [],
        "FedRAL Table 4": communication.fedral_table_4(),
    }  # fmt: skip
    for name, (title, columns, note) in TABLES.items():
        if tables[name]:
            output.text(title)
            output.table([{k: show(one) for k, show in columns.items()} for one in tables[name]])
            output.line("Note", note)
            output.text()
    if runs:
        _print_runs(runs, output)
        output.text()
    statuses = communication.count_statuses(cell.status for cell in cells)
    listed = ", ".join(f"{count} {kind}" for kind, count in statuses.items())
    output.line("Summary", f"Table 11: {plural(len(cells), 'cell')}: {listed}.")
    for name, found in tables.items():
        for one in found:
            flat: Mapping[str, Any] = {"table": name, **asdict(one), "status": one.status}
            if name == "FedRAL Table 4":
                flat = {**flat, **flat["row"], "ours_kilobytes": one.kilobytes}
            output.event("cell", {key: value for key, value in flat.items() if key != "row"})
    for each in runs:
        output.event("measured", asdict(each))
    if options.csv:
        write_csv(options.csv, [asdict(cell) for cell in cells])
        output.line("Written", str(options.csv), wrap=False)
    output.final(
        options.csv if options.quiet else None,
        {
            "cells": len(cells),
            **statuses,
            "pairs": {key: own.pairs for key, own in shares.items()},
            "labels": {key: own.source for key, own in shares.items()},
            **({"csv": options.csv} if options.csv else {}),
        },
    )
    return 0


def _check_options(options: argparse.Namespace) -> list[str]:
    """Refuse what makes no sense together; return the data sets."""
    keys = list(dict.fromkeys(options.dataset or DATA_SETS))
    problems = [
        unknown_name("data set", key, list(DATA_SETS)) for key in keys if key not in DATA_SETS
    ]
    if not options.communication:
        problems.append("Nothing to compare: give --communication.")
    for name, given in (("--labels", options.labels), ("--data-dir", options.data_dir)):
        if given is not None and "cifar10" not in keys:
            problems.append(f"{name} is for CIFAR-10, which --dataset leaves out.")
    if options.csv is not None and options.csv.is_dir():
        problems.append(f"--csv {options.csv} is a folder; a file is needed.")
    if problems:
        raise ConfigError(*problems, next_step="See fedre-benchmark --help.")
    return keys


def _with_runs(cell: ReportedCell, runs: Iterable[MeasuredTraffic]) -> ReportedCell:
    """Add what runs of the cell's own setting sent."""
    notes = [cell.note] if cell.note else []
    for run in runs:
        sent = run.paper[cell.direction]
        if sent is not None and run.belongs_to(cell):
            notes.append(f"measured {_spread(sent)}")
    return replace(cell, note="; ".join(notes))


def _number(thousands: float | None) -> str:
    return f"{'-' if thousands is None else format(thousands, ',.2f'):>10}"


def _thousands(scalars: int | None) -> str:
    return _number(None if scalars is None else scalars / 1000)


def _bytes(count: int | None) -> str:
    return f"{'-' if count is None else human_bytes(count):>10}"


def _spread(sent: Spread) -> str:
    if sent.least == sent.most:
        return f"{sent.mean / 1000:,.2f}"
    return f"{sent.mean / 1000:,.2f} [{sent.least / 1000:,.2f}, {sent.most / 1000:,.2f}]"


COUNTS: dict[str, Callable[[Any], str]] = {
    " published": lambda one: _number(one.published),
    "     paper": lambda one: _thousands(one.paper),
    "  complete": lambda one: _thousands(one.complete),
    "     bytes": lambda one: _bytes(one.nbytes),
}
TABLES: dict[str, tuple[str, dict[str, Callable[[Any], str]], str]] = {
    "FedRE Table 2": (
        "TABLE 2 of FedRE: CIFAR-100   each number found in Table 11",
        {
            "method": lambda one: one.method,
            "way": lambda one: one.direction,
            **COUNTS,
            "Table 11": lambda one: " + ".join(SHORT[s] for s in one.settings) or "none",
            "status": lambda one: one.status,
        },
        "FedGen's row joins a homogeneous upload to a heterogeneous broadcast; FedKD's row and "
        "FPL's broadcast are homogeneous: the rows are not of one experiment",
    ),
    "FedRE Table 4": (
        "TABLE 4 of FedRE: TinyImageNet   thousands of scalars",
        {
            "method": lambda one: one.method,
            "data": lambda one: one.partition,
            "d": lambda one: str(one.dim),
            " published": lambda one: _number(one.published),
            "      ours": lambda one: _thousands(one.scalars),
            "counted as": lambda one: one.rule,
            "status": lambda one: one.status,
        },
        "published: FedAllRep adds an upload at d = 512 in scalars to a broadcast in thousands; "
        "FedRE adds upload and broadcast at d = 2048",
    ),
    "FedRAL Table 4": (
        "TABLE 4 of FedRAL: KB of 1024 bytes, one client's upload, one round, r = 500",
        {
            "partition": lambda one: one.row.partition,
            "data": lambda one: one.row.data_set,
            "method": lambda one: one.row.method,
            " published": lambda one: _number(one.row.kilobytes),
            "      ours": lambda one: _number(one.kilobytes),
            "blocks m": lambda one: "-" if one.blocks is None else str(one.blocks),
            "total MB": lambda one: "matches" if one.total_matches else "differs",
            "status": lambda one: one.status,
        },
        "m is inferred from the printed KB; 1.56 KB is 400 scalars, fewer than the bare diagonal's "
        "500",
    ),
}
"""The smaller tables: title, columns from a number of theirs, and a note."""


def _print_data_set(key: str, own: Shares, cells: Sequence[ReportedCell], output: Output) -> None:
    data = DATA_SETS[key]
    output.text(f"TABLE 11 of FedRE: {data.name}   thousands of scalars, 10 clients, one round")
    matched = {
        None: "",
        True: " (the published partition, index for index)",
        False: " (another order than CIFAR-10's: not the published indices, the same counts)",
    }[own.matched]
    output.line("Labels", own.source + matched)
    output.line(
        "Facts",
        f"P = {own.pairs} pairs of a client and a class it trains on, d = {data.dim}, "
        f"C = {data.num_classes}, homogeneous model {data.homogeneous}",
    )
    if data.mislabelled:
        output.line(
            "Note",
            f"P needs the published labels: {data.mislabelled:,} validation images all of class "
            f"0. d = {data.dim} and {data.homogeneous} contradict the paper's text (512, "
            "ResNet-18)",
        )
    output.table(_merge_cells(cells))
    for (method, direction, note), group in groupby(
        _sort_cells(cells), key=lambda cell: (cell.method, cell.direction, cell.note)
    ):
        if note:
            output.line("Note", f"{method} {_models(group)} {direction}: {note}")
    output.text()


def _sort_cells(cells: Sequence[ReportedCell]) -> list[ReportedCell]:
    """Settings side by side: by method, then upload, then homogeneous models first."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    return sorted(
        cells,
        key=lambda cell: (methods.index(cell.method), cell.direction == "down",
                          list(SHORT).index(cell.setting)),
    )  # fmt: skip


def _models(cells: Iterable[ReportedCell]) -> str:
    return " + ".join(SHORT[cell.setting] for cell in cells)


def _merge_cells(cells: Sequence[ReportedCell]) -> list[dict[str, str]]:
    """One row for cells that agree in everything but the setting."""
    rows = []
    for _, group in groupby(
        _sort_cells(cells), key=lambda c: (c.method, c.direction, c.published, c.paper, c.complete)
    ):
        same = list(group)
        counts = {heading: show(same[0]) for heading, show in COUNTS.items()}
        rows.append({"method": same[0].method, "models": _models(same), "way": same[0].direction,
                     **counts, "status": same[0].status})  # fmt: skip
    return rows


def _print_runs(runs: Sequence[MeasuredTraffic], output: Output) -> None:
    output.text("MEASURED   thousands of scalars a round: mean [least, most]")
    for run in runs:
        output.line("Run", f"{run.name}: {run.data_set}, {run.summary}")
    rows = []
    for run in runs:
        for direction in ("up", "down"):
            formula = run.formula.way(direction) if run.formula else None
            paper, complete = run.paper[direction], run.complete[direction]
            rows.append({
                "run": run.name,
                "way": direction,
                "paper": _spread(paper) if paper else "-",
                "complete": _spread(complete) if complete else "-",
                "formula (complete)": _thousands(formula.complete if formula else None).strip(),
            })  # fmt: skip
    output.table(rows)
    output.line("Note", "broadcasts: those after the first round's, which may be empty or whole")
