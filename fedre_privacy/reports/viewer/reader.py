"""Read every result below a folder, which may come from a stranger.

Files are read with the readers of the library: bounded sizes, declared types, hashes checked where
the work is complete, no settings resolved and no module imported. What is not as it was written is
an entry of status `DAMAGED` with the reason, and the rest is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedre_privacy.benchmarking.jobs import read_result
from fedre_privacy.benchmarking.panels import panels_of, points_of, table_of
from fedre_privacy.benchmarking.results import frame, over_seeds
from fedre_privacy.core import files
from fedre_privacy.core.errors import FedreError, MissingInputError
from fedre_privacy.core.typed_yaml import check
from fedre_privacy.core.units import human_seconds, plural
from fedre_privacy.eval.measures import FRONTIER
from fedre_privacy.eval.report.frontier import pareto
from fedre_privacy.protocols.base import protocols
from fedre_privacy.reports.attack import flags_of
from fedre_privacy.runs.folder import COMPLETE, FAILED, PARTIAL
from fedre_privacy.runs.record import Record

from .attacks import read_attack
from .entries import (
    ATTACK,
    AUDIT,
    BENCHMARK,
    DAMAGED,
    MEMBERSHIP,
    RUN,
    Bar,
    FrontierPanel,
    ResultEntry,
    Row,
    Score,
    Table,
)
from .folders import (
    ResultFolder,
    digest,
    facets_of,
    failure_of,
    made_with,
    number_text,
    open_settings,
    seed_of,
    settings_of,
    without_root,
)
from .records import AuditRecord, MembershipRecord, SettingsRecord, StateRecord

CLOSED = {"private", "uploads", "models", "checkpoints", "jobs"}
"""Folders that are not looked into for results."""


def collect(root: Path, *, truth: bool = True) -> list[ResultEntry]:
    """Read every result below a folder, in the order of paths.

    Links are not followed.

    Args:
        root: holds run folders, or is one.
        truth: read what is private too: images that answers were scored against, who is a member,
            counts of classes, names of files and the settings of a data set.

    Raises:
        MissingInputError: no such folder, or nothing in it is a result.
    """
    if not root.is_dir():
        raise MissingInputError(
            f"No folder at {root}.", next_step="Give the folder of your runs, for example runs."
        )
    found: list[ResultEntry] = []
    splits: dict[Path, str] = {}
    for folder, kind in _results(root):
        above = folder.parent.parent
        place = ResultFolder(root, folder, kind, truth, splits.get(above, ""))
        entry = _read_folder(place)
        if kind == RUN:
            splits[folder] = _split_of(folder)
        elif kind in (ATTACK, AUDIT) and above in splits:
            parent = "" if above == root else above.relative_to(root).as_posix()
            entry = replace(entry, parent=parent or root.resolve().name)
        found.append(entry)
    if not found:
        raise MissingInputError(
            f"{root} holds no run, attack, audit or benchmark.",
            next_step="Make one: fedre-attack --protocol fedre. Or give another folder.",
        )
    return _complete_entries(found)


def _results(root: Path) -> Iterator[tuple[Path, str]]:
    """Folders that hold a result, with its kind; a run comes before what lies in it."""
    for where, inside, names in os.walk(root):
        folder = Path(where)
        if "jobs" in inside and any((folder / "jobs").glob("*.yaml")):
            yield folder, BENCHMARK
        elif "record.json" in names:
            kind = _kind(folder, names)
            yield folder, kind
            if kind != RUN:
                inside.clear()
        inside[:] = sorted(name for name in inside if name not in CLOSED and name[:1] != ".")


def _kind(folder: Path, names: Sequence[str]) -> str:
    if folder.parent.name == "audits":
        return AUDIT
    if "guesses.csv" in names or any(name.startswith("w0") for name in names):
        return MEMBERSHIP
    if folder.parent.name == "attacks" or "metrics.csv" not in names and "scores.csv" in names:
        return ATTACK
    return RUN


def _read_folder(place: ResultFolder) -> ResultEntry:
    try:
        return READERS[place.kind](place)
    except FedreError as error:
        return ResultEntry(
            place.kind, place.path, DAMAGED, without_root(" ".join(error.problems), place)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return ResultEntry(place.kind, place.path, DAMAGED, f"not readable: {type(error).__name__}")


def _complete_entries(found: Sequence[ResultEntry]) -> list[ResultEntry]:
    """Entries with what their runs say: protocol, scheme, defences and data."""
    runs = {entry.path: entry for entry in found if entry.kind == RUN}
    out = []
    for entry in found:
        run = runs.get(entry.parent)
        if run is not None:
            seed = run.seed if entry.seed is None else entry.seed
            entry = replace(entry, facets={**run.facets, **entry.facets}, seed=seed)
        out.append(entry)
    return out


def read_run(place: ResultFolder) -> ResultEntry:
    """The entry of a training."""
    status = files.read_json(place.folder / "record.json", StateRecord)["status"]
    record = files.read_json(place.checked("record.json", status), Record)
    settings = settings_of(place, status)
    facets, final = facets_of(settings), record.get("final", {})
    name = facets.get("protocol", "")
    moment = protocols.get(name).headline if name in protocols.names() else "post_broadcast"
    rows = [
        {
            "accuracy": f"{final[key]:.3f}",
            "sd over clients": number_text(final.get(f"{key}_sd")),
            "measured": f"{moment.replace('_', ' ')}, round {number_text(final.get('round'), 0)}",
            "on the shared test set": number_text(final.get(f"acc_shared_{moment}")),
            "scalars up": number_text(final.get("up_scalars"), 0),
            "scalars down": number_text(final.get("down_scalars"), 0),
        }
        for key in (f"acc_{moment}",)
        if final.get(key) is not None
    ]
    accuracy = final.get(f"acc_{moment}")
    facts = {"Training": record.get("summary", "")}
    facts |= {"Took": human_seconds(record["wall_s"])} if "wall_s" in record else {}
    active = record.get("active_server", "")
    bound = record.get("privacy", {}).get("bound", "")
    facts |= {"Bound": str(bound)} if bound else {}
    return ResultEntry(
        RUN, place.path, status, failure_of(status, record.get("failure", ""), place),
        facets=facets, seed=seed_of(settings), started=record.get("started", ""),
        accuracy=accuracy, flags=flags_of(active, "", False),
        facts=facts | made_with(record, place.folder, status),
        tables=(Table("Result", rows),) if rows else (), settings=settings,
        bars=(Bar("accuracy", accuracy), Bar("at most", 1.0)) if accuracy is not None else (),
    )  # fmt: skip


def _split_of(folder: Path) -> str:
    """A name of a run's data and partition; empty where its record cannot be read."""
    try:
        record = files.read_json(folder / "record.json", Record)
    except FedreError:
        return ""
    told = [record.get("data_sha256"), record.get("partition_sha256")]
    return digest(told) if all(told) else ""


def read_audit(place: ResultFolder) -> ResultEntry:
    """The entry of an audit of what defences claim."""
    status = files.read_json(place.folder / "record.json", StateRecord)["status"]
    record = files.read_json(place.checked("record.json", status), AuditRecord)
    promised = record.get("promised")
    row: Row = {
        "right guesses": f"{record['right']} of {record['trials']}",
        "p": f"{record['p']:.2g}",
        "epsilon shown": f">= {record['shown']:.2f} ({1 - record['alpha']:.0%})",
        "epsilon promised": "-" if promised is None else f"<= {promised:.2f}",
        "could have shown": f"{record['ceiling']:.2f}",
    }
    return ResultEntry(
        AUDIT, place.path, status, facets={"attack": f"audit: {record['level']}",
        "adversary": "auditor", "verdict": record["verdict"]}, because=record["because"],
        score=Score("epsilon shown", record["shown"], f"epsilon >= {record['shown']:.2f}"),
        n=record["trials"], facts={key: record[key] for key in ("Claim", "Game", "Attacker")},
        tables=(Table("Result", [row]),),
        bars=(Bar("shown", record["shown"]), Bar("promised" if promised else "could show",
                                                 promised or record["ceiling"])),
    )  # fmt: skip


def read_membership(place: ResultFolder) -> ResultEntry:
    """The entry of a membership game in shadow federations."""
    record = files.read_json(place.folder / "record.json", MembershipRecord)
    rows = [
        {
            "attack": name,
            "AUC [95 %]": f"{one['auc']:.3f} [{one['auc_interval'][0]:.3f}, "
            f"{one['auc_interval'][1]:.3f}]",
            "within class": number_text(one["auc_within"]),
            "knows": one.get("knows", "-"),
        }
        for part in (record["attacks"], record["floors"])
        for name, one in part.items()
    ]
    word, _, because = record["verdict"].partition(": ")
    settings = open_settings(place, record["training"])
    check(settings, SettingsRecord, place.folder / "record.json")
    best = record["attacks"].get(record["primary"])
    tables = [Table("Result", rows)]
    if place.truth and record["exposed"]:
        tables.append(Table("Records at risk (private)", record["exposed"]))
    return ResultEntry(
        MEMBERSHIP, place.path, record["status"],
        facets=facets_of(settings) | {"attack": record["primary"], "target": "membership",
                                    "adversary": "server with shadows", "verdict": word},
        seed=seed_of(settings), because=because,
        score=None if best is None else Score(
            "AUC over chance", best["auc"] - 0.5, f"AUC {best['auc']:.3f}"),
        n=record["worlds"] * record["slots"],
        facts={key: " ".join(record[key].split()) for key in ("Worlds", "Game", "Attacker")}
        | {"Took": human_seconds(record["seconds"])},
        tables=tuple(tables), settings=settings,
        bars=() if best is None else (Bar("AUC", best["auc"]), Bar("a coin", 0.5)),
    )  # fmt: skip


def read_benchmark(place: ResultFolder) -> ResultEntry:
    """The entry of a benchmark, with its tables and frontiers."""
    jobs = place.folder / "jobs"
    names = {path.stem for path in [*jobs.glob("*.yaml"), *jobs.glob("*.json")]}
    results = [read_result(path) for path in sorted(jobs.glob("*.json"))]
    rows = frame(results)
    summary = over_seeds(rows) if len(rows) else pd.DataFrame()
    failed = [one for one in results if one["status"] != COMPLETE]
    waiting = len(names) - len(results)
    status = PARTIAL if waiting else FAILED if len(failed) == len(results) else COMPLETE
    panels = []
    for panel in panels_of(summary, FRONTIER):
        points = points_of(summary, rows, panel.key)
        best = tuple(point.label for point in pareto(points))
        panels.append(FrontierPanel(panel.title, tuple(points), best))
    tables = [Table("Variants side by side", table_of(summary, rows))]
    if failed:
        lost = [
            {"variant": one["label"], "seed": one["seed"],
             "reason": without_root(one.get("failure") or "no reason was recorded", place)}
            for one in failed
        ]  # fmt: skip
        tables.append(Table("Failures", lost))
    trainings = [
        {"variant": one["label"], "seed": one["seed"], "status": one["status"],
         "run": one.get("run", "")}
        for one in results
    ]  # fmt: skip
    tables.append(Table("Trainings", trainings))
    took = sum(one["wall_s"] or 0.0 for one in results)
    told = [facets_of(open_settings(place, one["training"])) for one in results]
    facets = {
        key: ", ".join(sorted({one[key] for one in told if one.get(key)}))
        for key in ("protocol", "scheme", "defence", "data")
        if told
    }
    return ResultEntry(
        BENCHMARK, place.path, status,
        f"{plural(waiting, 'training')} of {len(names)} not finished yet" if waiting else "",
        facets={key: words for key, words in facets.items() if words}, n=len(results),
        facts={
            "Trainings": f"{len(results) - len(failed)} of {len(names)} finished"
            + (f", {len(failed)} failed" if failed else ""),
            "Took": f"{human_seconds(took)} (sum over trainings)",
        },
        tables=tuple(table for table in tables if table.rows), panels=tuple(panels),
        bars=tuple(Bar(f"accuracy of {point.label}", point.accuracy)
                   for panel in panels[:1] for point in panel.points[:4]),
    )  # fmt: skip


READERS = {
    RUN: read_run,
    ATTACK: read_attack,
    AUDIT: read_audit,
    MEMBERSHIP: read_membership,
    BENCHMARK: read_benchmark,
}
"""How a folder of each kind is read."""
