"""``fedre-benchmark``: published tables, recomputed side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from fedre_privacy.blocks.traffic import Count
from fedre_privacy.core.errors import ConfigError, unknown
from fedre_privacy.core.files import write_csv
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.core.units import human_bytes, plural
from fedre_privacy.reproduction.communication import (
    DIRECTIONS,
    SETTINGS,
    ReportedCell,
    Subset,
    Total,
    UploadCost,
    counted,
    fedral_table_4,
    table_2,
    table_4,
    table_11,
)
from fedre_privacy.reproduction.published_tables import DATA_SETS
from fedre_privacy.reproduction.recorded import Measured, Spread, measured
from fedre_privacy.reproduction.shares import Shares, cifar10_labels, read_labels, share_out
from fedre_privacy.runs.run import find_run

from ..output import Output

SHORT = {"homogeneous": "homo", "heterogeneous": "hete"}


def run(options: argparse.Namespace, output: Output) -> int:
    """Print published tables beside the same numbers recomputed; return the exit code."""
    import_plugins(options.plugin)
    keys = _checked(options)
    runs = [measured(find_run(path, options.runs_dir)) for path in options.measured]
    shares = {key: _shares(key, options) for key in keys}
    cells = [_with_runs(cell, runs) for cell in table_11(shares)]
    for key, own in shares.items():
        _print_data_set(key, own, [cell for cell in cells if cell.data_set == key], output)
    subset = table_2(cells) if "cifar100" in keys else []
    if subset:
        _print_table_2(subset, output)
    totals = table_4(shares["tinyimagenet"]) if "tinyimagenet" in keys else []
    if totals:
        _print_table_4(totals, output)
    costs = fedral_table_4()
    _print_fedral(costs, output)
    if runs:
        _print_runs(runs, output)
    statuses = counted([cell.status for cell in cells])
    listed = ", ".join(f"{count} {kind}" for kind, count in statuses.items())
    output.text()
    output.line("Summary", f"Table 11: {plural(len(cells), 'cell')}: {listed}.")
    _events(cells, subset, totals, costs, runs, output)
    if options.csv:
        write_csv(options.csv, [asdict(cell) for cell in cells])
        output.line("Written", str(options.csv), wrap=False)
    written = {"csv": options.csv} if options.csv else {}
    output.final(
        options.csv if options.quiet else None,
        {
            "cells": len(cells),
            **statuses,
            "pairs": {key: own.pairs for key, own in shares.items()},
            "labels": {key: own.source for key, own in shares.items()},
            **written,
        },
    )
    return 0


def _checked(options: argparse.Namespace) -> list[str]:
    """Refuse what makes no sense together; return the data sets."""
    keys = list(dict.fromkeys(options.dataset or DATA_SETS))
    problems = [unknown("data set", key, list(DATA_SETS)) for key in keys if key not in DATA_SETS]
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


def _shares(key: str, options: argparse.Namespace) -> Shares:
    if key == "cifar10" and options.labels is not None:
        return share_out(key, read_labels(options.labels), str(options.labels))
    if key == "cifar10" and options.data_dir is not None:
        return share_out(key, cifar10_labels(options.data_dir), f"CIFAR-10 in {options.data_dir}")
    return share_out(key)


def _with_runs(cell: ReportedCell, runs: Iterable[Measured]) -> ReportedCell:
    """Add what runs of the cell's own setting sent."""
    notes = [cell.note] if cell.note else []
    for run in runs:
        sent = run.paper[cell.direction]
        if sent is not None and run.belongs_to(cell):
            notes.append(f"measured {_spread(sent)}")
    return replace(cell, note="; ".join(notes))


# --- printing --------------------------------------------------------------------------------


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


def _print_data_set(key: str, own: Shares, cells: Sequence[ReportedCell], output: Output) -> None:
    data = DATA_SETS[key]
    output.text(f"TABLE 11 of FedRE: {data.name}   thousands of scalars, 10 clients, one round")
    output.line("Labels", own.source + _match(own))
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
    output.table(_merged(cells))
    for (method, direction, note), group in groupby(
        _ordered(cells), key=lambda cell: (cell.method, cell.direction, cell.note)
    ):
        if note:
            output.line("Note", f"{method} {_models(list(group))} {direction}: {note}")
    output.text()


def _match(own: Shares) -> str:
    if own.matched is None:
        return ""
    if own.matched:
        return " (the published partition, index for index)"
    return " (another order than CIFAR-10's: not the published indices, the same counts)"


def _ordered(cells: Sequence[ReportedCell]) -> list[ReportedCell]:
    """Settings side by side: by method, then direction, then setting."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    return sorted(
        cells,
        key=lambda cell: (
            methods.index(cell.method),
            DIRECTIONS.index(cell.direction),
            SETTINGS.index(cell.setting),
        ),
    )


def _models(cells: Sequence[ReportedCell]) -> str:
    return " + ".join(SHORT[cell.setting] for cell in cells)


def _merged(cells: Sequence[ReportedCell]) -> list[dict[str, str]]:
    """One row for cells that agree in everything but the setting."""

    def row(cell: ReportedCell) -> tuple[Any, ...]:
        return (cell.method, cell.direction, cell.published, cell.paper, cell.complete)

    rows = []
    for _, group in groupby(_ordered(cells), key=row):
        same = list(group)
        first = same[0]
        rows.append(
            {
                "method": first.method,
                "models": _models(same),
                "way": first.direction,
                " published": _number(first.published),
                "     paper": _thousands(first.paper),
                "  complete": _thousands(first.complete),
                "     bytes": _bytes(first.nbytes),
                "status": first.status,
            }
        )
    return rows


def _print_table_2(subset: Sequence[Subset], output: Output) -> None:
    output.text("TABLE 2 of FedRE: CIFAR-100   each number found in Table 11")
    output.table(
        [
            {
                "method": number.method,
                "way": number.direction,
                " published": _number(number.published),
                "     paper": _thousands(number.paper),
                "  complete": _thousands(number.complete),
                "     bytes": _bytes(number.nbytes),
                "Table 11": " + ".join(SHORT[s] for s in number.settings) or "none",
                "status": number.status,
            }
            for number in subset
        ]
    )
    output.line(
        "Note",
        "FedGen's row joins a homogeneous upload to a heterogeneous broadcast; FedKD's row and "
        "FPL's broadcast are homogeneous: the rows are not of one experiment",
    )
    output.text()


def _print_table_4(totals: Sequence[Total], output: Output) -> None:
    output.text("TABLE 4 of FedRE: TinyImageNet   thousands of scalars")
    output.table(
        [
            {
                "method": total.method,
                "data": total.partition,
                "d": str(total.dim),
                " published": _number(total.published),
                "      ours": _thousands(total.scalars),
                "counted as": total.rule,
                "status": total.status,
            }
            for total in totals
        ]
    )
    output.line(
        "Note",
        "published: FedAllRep adds an upload at d = 512 in scalars to a broadcast in thousands; "
        "FedRE adds upload and broadcast at d = 2048",
    )
    output.text()


def _print_fedral(costs: Sequence[UploadCost], output: Output) -> None:
    output.text("TABLE 4 of FedRAL: KB of 1024 bytes, one client's upload, one round, r = 500")
    output.table(
        [
            {
                "partition": cost.row.partition,
                "data": cost.row.data_set,
                "method": cost.row.method,
                " published": _number(cost.row.kilobytes),
                "      ours": _number(cost.kilobytes),
                "blocks m": "-" if cost.blocks is None else str(cost.blocks),
                "total MB": "matches" if cost.total_matches else "differs",
                "status": cost.status,
            }
            for cost in costs
        ]
    )
    output.line(
        "Note",
        "m is inferred from the printed KB; 1.56 KB is 400 scalars, fewer than the bare diagonal's "
        "500",
    )


def _print_runs(runs: Sequence[Measured], output: Output) -> None:
    output.text()
    output.text("MEASURED   thousands of scalars a round: mean [least, most]")
    for run in runs:
        output.line("Run", f"{run.name}: {run.data_set}, {run.summary}")
    rows = []
    for run in runs:
        for direction in DIRECTIONS:
            formula = run.formula.way(direction) if run.formula else None
            paper, complete = run.paper[direction], run.complete[direction]
            rows.append(
                {
                    "run": run.name,
                    "way": direction,
                    "paper": _spread(paper) if paper else "-",
                    "complete": _spread(complete) if complete else "-",
                    "formula (complete)": _formula(formula).strip(),
                }
            )
    output.table(rows)
    output.line("Note", "broadcasts: those after the first round's, which may be empty or whole")


def _formula(count: Count | None) -> str:
    return _thousands(None if count is None else count.complete)


def _events(
    cells: Sequence[ReportedCell],
    subset: Sequence[Subset],
    totals: Sequence[Total],
    costs: Sequence[UploadCost],
    runs: Sequence[Measured],
    output: Output,
) -> None:
    """The same as JSON, one object per number."""
    for cell in cells:
        output.event("cell", {"table": "FedRE Table 11", **asdict(cell)})
    for number in subset:
        output.event("cell", {"table": "FedRE Table 2", **asdict(number)})
    for total in totals:
        output.event("cell", {"table": "FedRE Table 4", **asdict(total), "status": total.status})
    for cost in costs:
        flat: Mapping[str, Any] = {**asdict(cost), **asdict(cost.row)}
        fields = {key: value for key, value in flat.items() if key != "row"}
        output.event(
            "cell", {"table": "FedRAL Table 4", **fields, "ours_kilobytes": cost.kilobytes}
        )
    for run in runs:
        output.event("measured", asdict(run))
