"""``report.html`` of a benchmark, and beside it the settings that repeat it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import yaml

from fedre_privacy.benchmarking.benchmark import BenchmarkResult
from fedre_privacy.benchmarking.results import JobResult
from fedre_privacy.benchmarking.variants import Benchmark
from fedre_privacy.core import files
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.core.units import human_seconds, plural
from fedre_privacy.eval.measures import RECORD
from fedre_privacy.runs.folder import COMPLETE, BegunRecord
from fedre_privacy.runs.settings import ADAPTIVE, NAIVE

from . import html
from .html import Link
from .page_parts import DEFINITIONS, NAME, absent, figures, protocol_name, versions

SWEEP = "sweep.yaml"
NAMED = 6
"""Variants that the title of the page names."""


def write_benchmark_report(result: BenchmarkResult) -> Path:
    """Write the page of a benchmark into its folder, and beside it the settings that repeat it.

    Returns:
        The page's file.
    """
    folder, wanted, jobs, runs = result.folder, result.wanted, result.jobs, result.runs
    sweep = _sweep(wanted)
    plugins = plugin_words(module for job in wanted.jobs for module in job.plugins())
    text = yaml.safe_dump(sweep, sort_keys=False, default_flow_style=False)
    files.write_text(folder / SWEEP, text)
    failed = [job for job in jobs if job["status"] != COMPLETE]
    bad = f", {len(failed)} failed" if failed else ""
    page = html.fill_template(
        "benchmark.html",
        title=_title(wanted),
        name=wanted.name,
        counted=f"{plural(len(wanted.variants), 'variant')}, seeds "
        f"{', '.join(map(str, wanted.seeds))}: {plural(len(jobs), 'training')}{bad}.",
        variants=list(result.table()),
        defences=list(result.defences()),
        figures=figures(folder),
        failed=failed,
        parts=[_variant(one.label, result, jobs, runs) for one in wanted.variants],
        jobs=[_job(job) for job in jobs],
        words={**DEFINITIONS, **COLUMNS, **_measures(jobs)},
        settings=text,
        made=_command_line(jobs, runs),
        command=f"fedre-benchmark {SWEEP} --out . --runs-dir {_relative(runs, folder)}{plugins}",
    )
    path = folder / NAME
    files.write_text(path, page)
    return path


def _title(wanted: Benchmark) -> str:
    """What is compared, in words."""
    labels = [protocol_name(variant.label) for variant in wanted.variants]
    some = ", ".join(labels) if len(labels) <= NAMED else plural(len(labels), "variant")
    return f"benchmark of {some}"


COLUMNS = {
    "images: ..., prototypes: ..., labels: ..., membership: ...": "the strongest attack's value, "
    "its floor in brackets; PSNR over its floor, where the strongest attack on images of the suite "
    "decides; '-': no such attack could read the upload, which does not mean that it is safe",
    "Pareto": "no other variant is at least as good in accuracy, scalars and leakage of images and "
    "better in one",
    "+-": "sd over seeds",
    "false security": "leakage under an attacker that knows the defence, less that under one that "
    "does not",
    "seconds a round": "of the fastest round of all seeds",
}


def _measures(jobs: Sequence[JobResult]) -> dict[str, str]:
    """Definitions of the measures by their titles."""
    return {
        measure["title"]: measure["definition"]
        for job in jobs
        for entry in job["attacks"]
        for measure in entry.get("measures", ())
        if measure["shown"] != RECORD and measure["definition"]
    }


def _sweep(wanted: Benchmark) -> dict[str, Any]:
    """The benchmark as a sweep file that `read_sweep` takes back."""
    sweep = {
        "name": wanted.name,
        "base": dict(wanted.base),
        "vary": {variant.label: dict(variant.values) for variant in wanted.variants},
        "seeds": list(wanted.seeds),
        "attacks": None if wanted.attacks is None else [dict(a) for a in wanted.attacks],
        "targets": wanted.targets,
        "attackers": list(wanted.attackers) if wanted.attackers != (ADAPTIVE,) else None,
    }
    plain = json.loads(json.dumps(sweep, default=str))
    return {key: value for key, value in plain.items() if value not in (None, {}, [])}


def _variant(
    label: str, result: BenchmarkResult, jobs: Sequence[JobResult], runs: Path
) -> dict[str, object]:
    part = result.summary
    rows: list[dict[str, object]] = []
    if len(part):
        for row in part[part["label"] == label].to_dict("records"):
            if absent(row["attack"]):
                continue
            rows.append(
                {
                    "attack": row["attack"],
                    "target": row["target"],
                    "threat": row["threat"],
                    "attacker": row["attacker"],
                    "measure": f"{row['title']} {row['unit'] or ''}".strip(),
                    "group": row["group"] or "all",
                    "value": _mean_sd(row["value"], row["value_sd"]),
                    "floor": _mean_sd(row["floor"], None),
                    "over floor": _mean_sd(row["over"], row["over_sd"]),
                    "n": row["n"],
                    "seeds": row["seeds"],
                    "counterfactual": "yes" if row["counterfactual"] is True else "",
                }
            )
    own = [job for job in jobs if job["label"] == label]
    verdicts: list[dict[str, object]] = []
    for job in own:
        for entry in job["attacks"]:
            page = runs / str(job["run"]) / "attacks" / entry.get("folder", "") / NAME
            link = Link("report", quote(_relative(page, result.folder)))
            verdicts.append(
                {
                    "attack": f"{entry['attack']} on {entry['target']}"
                    + (f", {NAIVE}" if entry.get("attacker") == NAIVE else ""),
                    "seed": job["seed"],
                    "verdict": entry["verdict"],
                    "because": entry["because"],
                    "page": link if page.is_file() else None,
                }
            )
    return {
        "label": label,
        "measures": rows,
        "verdicts": verdicts,
        "finished": any(job["status"] == COMPLETE for job in own),
    }


def _mean_sd(mean: float | None, sd: float | None) -> str:
    if mean is None or pd.isna(mean):
        return "-"
    return f"{mean:.4g}" + ("" if sd is None or pd.isna(sd) else f" +- {sd:.2g}")


def _job(job: JobResult) -> dict[str, object]:
    final = job.get("final") or {}
    took = job.get("wall_s")
    return {
        "variant": job["label"],
        "seed": job["seed"],
        "status": job["status"],
        "accuracy after local training": final.get("acc_post_local"),
        "accuracy after the broadcast": final.get("acc_post_broadcast"),
        "on the shared test set, local": final.get("acc_shared_post_local"),
        "on the shared test set, broadcast": final.get("acc_shared_post_broadcast"),
        "took (s)": None if took is None else round(took, 1),
        "run": job.get("run"),
    }


def _command_line(jobs: Sequence[JobResult], runs: Path) -> dict[str, str]:
    out = {}
    for job in jobs:
        path = runs / str(job.get("run")) / "record.json"
        if path.is_file():
            record = files.read_json(path, BegunRecord)
            out = {
                "Started": record["started"],
                "Device": record["device"],
                "Versions": versions(record),
            }
            break
    took = sum(job.get("wall_s") or 0.0 for job in jobs)
    return {**out, "Took": f"{human_seconds(took)} (sum over trainings)"}


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
