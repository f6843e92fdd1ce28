"""Results of the kit and of campaigns as Markdown and as a figure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduling import DONE, Results, unit_of
from scipy import stats

KIT, PUBLISHED, CPU = "kit", "published", "cpu"
SHOWN_LINES = 40


@dataclass(frozen=True)
class Row:
    """One protocol under one partition, over its seeds.

    Args:
        own: accuracy of the headline in percent, one value a seed, on clients' own test images.
        shared: the same on the shared test set.
        own_over, shared_over: each less that of training alone with the same seed.
        sent: MiB a round, both ways, all clients.
    """

    protocol: str
    partition: str
    own: Sequence[float]
    shared: Sequence[float]
    own_over: Sequence[float]
    shared_over: Sequence[float]
    sent: float


def trainings(results: Results) -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """Finished trainings by (partition, name) and seed.

    The name is the protocol with its models and defence.
    """
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for name, result in results.all().items():
        if result["status"] == DONE and "rounds" in result:
            before, _, seed = name.rpartition("-s")
            protocol, _, partition = before.rpartition("-")
            found[partition, protocol][int(seed)] = result
    return found


def last(result: Mapping[str, Any], kind: str = "") -> float:
    """Accuracy after the last round at the moment that the protocol quotes, percent.

    Args:
        kind: "" for clients' own test images, ``shared_`` for the shared test set.
    """
    return 100 * float(result["rounds"][-1][f"acc_{kind}{result['headline']}"])


def rows(results: Results) -> list[Row]:
    """Every protocol and partition, the best on the shared test set first."""
    found = trainings(results)
    out = []
    for (partition, protocol), seeds in found.items():
        alone = found.get((partition, "local"), {})
        both = [seed for seed in sorted(seeds) if seed in alone and protocol != "local"]
        rounds = next(iter(seeds.values()))["settings"]["train"]["rounds"]
        traffic = [r["traffic"]["up_bytes"] + r["traffic"]["down_bytes"] for r in seeds.values()]
        out.append(
            Row(
                protocol, partition,
                [last(seeds[seed]) for seed in sorted(seeds)],
                [last(seeds[seed], "shared_") for seed in sorted(seeds)],
                [last(seeds[seed]) - last(alone[seed]) for seed in both],
                [last(seeds[seed], "shared_") - last(alone[seed], "shared_") for seed in both],
                statistics.fmean(traffic) / rounds / 2**20,
            )
        )  # fmt: skip
    return sorted(out, key=lambda row: (row.partition, -statistics.fmean(row.shared)))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a mean by Student's t, a seed being one unit; None for one value."""
    if len(values) < 2:
        return None
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def told_apart(values: Sequence[float]) -> str:
    """Above, below, or neither: where the interval of differences lies."""
    found = interval(values)
    if found is None:
        return ""
    return "above" if found[0] > 0 else "below" if found[1] < 0 else ""


def campaign_table(results: Results) -> str:
    """Accuracies of every protocol and partition, and what they differ from training alone by."""
    by_partition: dict[str, list[Row]] = defaultdict(list)
    for row in rows(results):
        by_partition[row.partition].append(row)
    out = []
    for partition, own in by_partition.items():
        out += [
            f"`{_spelt(partition)}`",
            "",
            "| protocol | seeds | own test images | over training alone | shared test set | over "
            "training alone | MiB a round |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in own:
            out.append(
                f"| `{row.protocol}` | {len(row.own)} | {_spread(row.own)} | {_over(row.own_over)} "
                f"| {_spread(row.shared)} | {_over(row.shared_over)} | {row.sent:.2f} |"
            )
        out.append("")
    return "\n".join(out).rstrip()


def _spelt(partition: str) -> str:
    return f"{partition[:3]}:{partition[3:]}"


def _spread(values: Sequence[float]) -> str:
    sd = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{sd}"


def _over(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, ends = statistics.fmean(values), interval(values)
    if ends is None:
        return f"{mean:+.1f} (one seed)"
    bold = "**" if told_apart(values) else ""
    return f"{bold}{mean:+.1f} [{ends[0]:+.1f}, {ends[1]:+.1f}]{bold}"


def suite_table(results: Results) -> str:
    """What attacks of a campaign found: leading measures with floors, intervals and n."""
    out = [
        "| training, round | attack, target, threat | measure | value | floor | over the floor | n "
        "| verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    empty = len(out)
    for name, result in results.all().items():
        for entry in result.get("attacks", ()) if result["status"] == DONE else ():
            told = f"{entry['attack']}, {entry['target']}, {entry['threat']}"
            leading = [m for m in entry.get("measures", ())
                       if m["shown"] == "frontier" and not m["group"]]  # fmt: skip
            for measure in leading:
                ends = measure["over_interval"]
                over = "-" if measure["over"] is None else f"{measure['over']:+.2f}"
                over += f" [{ends[0]:+.2f}, {ends[1]:+.2f}]" if ends else ""
                out.append(
                    f"| {name} | {told} | {measure['title']} {measure['unit']} "
                    f"| {_number(measure['value'])} | {_number(measure['floor'])} | {over} "
                    f"| {measure['n']} | {entry['verdict']} |"
                )
            if not leading:
                out.append(f"| {name} | {told} | - | - | - | - | - | {entry['verdict']} |")
    return "\n".join(out) if len(out) > empty else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def kit_table(results: Results) -> str:
    """What the steps of the kit came to, with what each printed last."""
    found = results.all()
    out = ["| step | asked | status | seconds | on |", "|---|---|---|---|---|"]
    out += [
        f"| {name} | {one['asked'] or '-'} | {one['status']} | {one['seconds']} "
        f"| {unit_of(one['machine'])} |"
        for name, one in found.items()
    ]
    for name, one in found.items():
        lines = "\n".join(one.get("lines", [])[-SHOWN_LINES:])
        out += ["", f"**{name}**: `{one['command']}`", "", "```", lines, "```"]
    return "\n".join(out) if found else ""


def taken_on(results: Results) -> str:
    """Machines, versions and commits of a list's results, in one sentence."""
    every = list(results.all().values())
    found = [one["machine"] for one in every]
    if not found:
        return ""
    units = sorted({unit_of(one) for one in found})
    commits = sorted({one["commit"][:7] for one in found})
    versions = sorted({one["torch"] for one in found})
    return (
        f"{len(found)} results on {', '.join(units)}; torch {', '.join(versions)}; "
        f"commits {', '.join(commits)}.{trained_in(every)}"
    )


def trained_in(results: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of trainings, those that ran alone and those beside others, in one sentence."""
    alone, beside = [], []
    for one in results:
        if "rounds" in one and "seconds_of_training" in one:
            (beside if one.get("beside") else alone).append(float(one["seconds_of_training"]))
    parts = [
        f"{' to '.join(f'{t:.0f}' for t in sorted({min(found), max(found)}))} s {where}"
        for where, found in (("alone", alone), ("beside other jobs", beside))
        if found
    ]
    return f" A training took {'; '.join(parts)}." if parts else ""


TABLES = {
    KIT: (kit_table,),
    PUBLISHED: (campaign_table, suite_table),
    CPU: (campaign_table, suite_table),
}
"""By list: what its results are written as."""


def block(name: str, folder: Path) -> str:
    """One table of the docs; `name` is ``LIST`` or ``LIST campaign`` or ``LIST suite``."""
    group, _, what = name.partition(" ")
    results = Results(folder / group)
    made = [make for make in TABLES[group] if not what or make.__name__.startswith(what)]
    parts = [text for make in made if (text := make(results))]
    return "\n\n".join([*parts, taken_on(results)]).strip() or "No result yet."


def everything(folder: Path) -> str:
    """All lists, one after another."""
    return "\n\n".join(f"## {group}\n\n{block(group, folder)}" for group in TABLES)


def fill(page: Path, folder: Path) -> str:
    """A page whose tables between ``<!-- results: NAME -->`` and ``<!-- end -->`` are of today."""
    text = page.read_text(encoding="utf-8")
    start, stop = "<!-- results: ", "<!-- end -->"
    out, rest = "", text
    while start in rest:
        before, _, after = rest.partition(start)
        name, _, after = after.partition(" -->")
        _, _, rest = after.partition(stop)
        out += f"{before}{start}{name} -->\n\n{block(name, folder)}\n\n{stop}"
    return out + rest


def figure(results: Results, path: Path) -> Path:
    """Draw accuracies of every protocol; red: training alone. Write PNG and PDF."""
    from fedre_privacy.eval.report import save_figure
    from fedre_privacy.eval.report.comparison import Column, Dot, comparison

    by_cell = {(row.partition, row.protocol): row for row in rows(results)}
    names = list(dict.fromkeys(protocol for _, protocol in by_cell))
    columns = []
    for partition in sorted({partition for partition, _ in by_cell}, reverse=True):
        for kind, title in (("own", "own test images"), ("shared", "shared test set")):
            alone = by_cell.get((partition, "local"))
            dots = []
            for name in names:
                row = by_cell.get((partition, name))
                values = getattr(row, kind) if row else []
                mean = statistics.fmean(values) if values else None
                sd = statistics.stdev(values) if len(values) > 1 else None
                floor = statistics.fmean(getattr(alone, kind)) if alone else None
                dots.append(Dot(mean, sd, floor))
            columns.append(Column(f"{_spelt(partition)}\n{title}", tuple(dots), absent="not run"))
    drawn = comparison(
        names, columns, title="Accuracy, percent",
        caption="Mean and standard deviation over seeds after the last round, at the moment that "
        "the protocol quotes; red: training alone.",
    )  # fmt: skip
    return save_figure(drawn, path)[0]
