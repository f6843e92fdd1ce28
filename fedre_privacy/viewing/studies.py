"""Read the folders of audits, membership games and benchmarks."""

from __future__ import annotations

import pandas as pd

from fedre_privacy.core import files
from fedre_privacy.core.schema import check
from fedre_privacy.core.units import human_seconds, plural
from fedre_privacy.eval.measures import FRONTIER
from fedre_privacy.eval.report.frontier import pareto
from fedre_privacy.runs.folder import COMPLETE, FAILED, PARTIAL
from fedre_privacy.study.jobs import read_result
from fedre_privacy.study.panels import panels_of, points_of, table_of
from fedre_privacy.study.results import frame, over_seeds

from .entries import AUDIT, BENCHMARK, MEMBERSHIP, Entry, Panel, Row, Score, Table
from .folders import ResultFolder, facets_of, number_text, open_settings, seed_of, without_root
from .records import AuditRecord, MembershipRecord, SettingsRecord, StateRecord


def read_audit(place: ResultFolder) -> Entry:
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
    return Entry(
        AUDIT, place.path, status, facets={"attack": f"audit: {record['level']}",
        "adversary": "auditor", "verdict": record["verdict"]}, because=record["because"],
        score=Score("epsilon shown", record["shown"], f"epsilon >= {record['shown']:.2f}"),
        n=record["trials"], facts={key: record[key] for key in ("Claim", "Game", "Attacker")},
        tables=(Table("Result", [row]),),
    )  # fmt: skip


def read_membership(place: ResultFolder) -> Entry:
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
    return Entry(
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
    )  # fmt: skip


def read_benchmark(place: ResultFolder) -> Entry:
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
        panels.append(Panel(panel.title, tuple(points), best))
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
    return Entry(
        BENCHMARK, place.path, status,
        f"{plural(waiting, 'training')} of {len(names)} not finished yet" if waiting else "",
        facets={key: words for key, words in facets.items() if words}, n=len(results),
        facts={
            "Trainings": f"{len(results) - len(failed)} of {len(names)} finished"
            + (f", {len(failed)} failed" if failed else ""),
            "Took": f"{human_seconds(took)} (sum over trainings)",
        },
        tables=tuple(table for table in tables if table.rows), panels=tuple(panels),
    )  # fmt: skip
