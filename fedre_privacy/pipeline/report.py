"""``report.html``: an attack or a benchmark on one page that needs nothing beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd
import yaml

from fedre_privacy.core import files
from fedre_privacy.core.units import human_bytes, human_seconds, plural
from fedre_privacy.eval.report import html
from fedre_privacy.eval.report.html import Html, Link, Section, Target
from fedre_privacy.eval.score import LOST_RULE

from .questions.images import TARGET, ImageCard
from .runs import COMPLETE, Run

if TYPE_CHECKING:
    from .attack import AttackResult
    from .benchmark import Benchmark, BenchmarkResult

NAME = "report.html"
SWEEP = "sweep.yaml"

SHOWN_TARGETS = 60
"""Targets whose pictures are on the page; the table has all."""

SHOWN_ROWS = 1000
"""Rows of the table of single targets; the CSV has all."""

ORACLE = "the attacker was given what no real server has"
COUNTERFACTUAL = "the protocol does not upload what was attacked; it asks what it would leak if"

FIGURES = {
    "frontier": "Accuracy against communication and against leakage; a ring marks the Pareto set.",
    "comparison": "Every variant with its accuracy, communication and kinds of leakage.",
    "matrix": "Which attack reads which upload, and how far above its floor it comes.",
    "rounds-attacked": "Leakage over the floor against the attacked round.",
    "rounds-read": "Leakage over the floor against the number of rounds that the attack reads.",
    "figure": "What the attack recovered, beside the truth and the floor.",
    "trace": "The attack's own objective along the way.",
}
"""Captions of figures by file name, in the order in which they stand on the page."""

DEFINITIONS = {
    "floor": "the best answer that needs no upload, scored by the same rule on the same targets",
    "over floor": "paired difference to the floor; in brackets its 95 % interval over clients, "
    "each interval by itself",
    "ceiling": "the same attack on single representations, which mix nothing",
    "found among N": "share of targets whose true image is the nearest, by MSE, in a line-up of N: "
    "one image that entered the target, the others not, of the same class first; a guess that "
    "knows the class takes any image of that class",
    "identification@1": "images: as 'found', N = 1; prototypes: share of answers that are nearest "
    "(Euclidean) to their own true prototype among the client's",
    "centred cosine": "cosine of recovered and true prototype, both less the mean of the client's "
    "true prototypes",
    "relative error": "||p - p'|| / ||p'||, p' the true prototype",
    "median s_min(W)": "smallest singular value of the matrix of label weights; 0: the uploads do "
    "not determine the prototypes",
    "support Jaccard": "classes said and held, over classes said or held",
    "support precision": "share of the classes said that are held",
    "support recall": "share of the classes held that are said",
    "L1 error of shares": "sum over classes of the absolute error of their share",
    "relative error of size": "error of the number of samples, over that number",
    "AUC": "share of pairs (training image, other image) of one client and class that the attack "
    "puts in the right order; floor: the model alone, without any upload",
    "TPR at FPR": "share of training images recognised at that rate of false alarms",
}
"""Measures in words, by how their names begin."""


def write_attack_report(result: AttackResult) -> Path:
    """Write the page of an attack into its folder, from its record, scores and figures.

    Returns:
        The file.
    """
    game, record, summary = result.game, result.record, result.card.summary
    run, settings = game.run, game.settings
    sections = [
        Section("Result", _headline(result)),
        Section("Figures", _figures(result.folder)),
        Section("Targets", _targets(result)),
        Section("By number of images", _groups(summary)),
        Section("Single targets", _single(result.frame())),
        Section("Floors", _floors(result)),
        Section("Notes", html.bullets(_notes(result))),
        Section("What the words mean", _definitions(result)),
        Section(
            "Settings",
            html.join(
                html.heading("Attack"),
                _settings(settings.plain(), "Settings of the attack"),
                html.details("Training", _settings(run.settings.plain(), "Settings of training")),
            ),
        ),
        Section("How it was made", html.facts(_provenance(run, record))),
        Section(
            "Again",
            html.join(
                html.paragraph("In the folder of this page:"),
                html.preformatted(
                    "fedre-attack --config config.yaml --runs-dir ../../..",
                    label="Command",
                ),
                html.paragraph(
                    "It finds this run and this attack and reads them back; --restart repeats the "
                    "attack. Elsewhere config.yaml alone trains and attacks anew.",
                    soft=True,
                ),
            ),
        ),
    ]
    because = result.verdict().removeprefix(summary["verdict"]).lstrip(": ")
    lead = html.join(
        html.flag("COUNTERFACTUAL", f"{COUNTERFACTUAL} {run.settings.protocol.name} did.")
        if game.counterfactual
        else Html(""),
        html.flag("ORACLE", f"{ORACLE}: {', '.join(record['oracles'])}.")
        if record["oracles"]
        else Html(""),
        html.verdict(summary["verdict"], because),
        html.facts(
            {"Protocol": f"{run.settings.protocol.name}: {run.record['summary']}"}
            | {name: " ".join(words.split()) for name, words in record["game"].items()}
        ),
    )
    title = f"{settings.attack.name} on {game.kind} of {run.name}"
    path = result.folder / NAME
    files.write_text(path, html.page(title, lead, sections))
    return path


def _headline(result: AttackResult) -> Html:
    summary = result.card.summary
    lost = f", {summary['diverged']} diverged" if summary["diverged"] else ""
    if lost and "diverged_rule" in summary:
        lost += f" ({summary['diverged_rule']})"
    rows = [
        {
            **({"classes of": row["classes of"]} if "classes of" in row else {}),
            "metric": row["metric"],
            "this attack": row["attack"],
            **{k: v for k, v in row.items() if k not in ("classes of", "metric", "attack")},
        }
        for row in result.table()
    ]
    return html.join(
        html.paragraph(
            f"{summary['n']} of {plural(summary['targets'], 'target')}{lost}; "
            f"{summary['rule_text']}."
        ),
        html.table(rows, label="Result"),
    )


def _figures(folder: Path) -> Html:
    order = list(FIGURES)
    found = sorted(
        folder.glob("*.png"),
        key=lambda p: (order.index(p.stem) if p.stem in order else len(order), p.name),
    )
    return html.join(
        *(
            html.figure(path.read_bytes(), alt=path.stem, caption=FIGURES.get(path.stem, path.stem))
            for path in found
        )
    )


def _targets(result: AttackResult) -> Html:
    card = result.card
    if not isinstance(card, ImageCard):
        return Html("")
    scores, recovered = card.scores[TARGET], card.recovered[TARGET].images
    if recovered.shape[1] not in (1, 3):
        return html.paragraph("Images of this many channels cannot be shown.")
    entries, classes = scores.summary["metrics"], result.game.run.record["classes"]
    shown = []
    for row in scores.rows.head(SHOWN_TARGETS).to_dict("records"):
        at, label = int(row["target"]), int(row["label"])
        made_of = plural(int(row["support_size"]), "image")
        kind = f"class {classes[label]}" if label >= 0 else "several classes"
        shown.append(
            Target(
                f"Target {at}: client {row['client']}, {kind}, of {made_of}",
                {
                    "truth (match)": html.png(scores.originals[at]),
                    "recovered": html.png(recovered[at]),
                    f"floor: {row['floor'] or 'none'}": html.png(scores.floor_images[at]),
                },
                {
                    str(entry["title"]): f"{_score(row[name], entry)} "
                    f"(floor {_score(row[f'{name}_floor'], entry)})"
                    for name, entry in entries.items()
                }
                | {"found in the line-up": "yes" if row["hit1"] == 1 else "no"},
                f"diverged: {LOST_RULE}" if row["diverged"] else "",
            )
        )
    count = len(scores.rows)
    more = f" The first {SHOWN_TARGETS} of {count} are shown." if count > SHOWN_TARGETS else ""
    return html.join(
        html.paragraph(
            "The truth is private training data: share this page as you would share that."
            f"{more} The floor's picture is that of the floor by PSNR.",
            soft=True,
        ),
        html.gallery(shown),
    )


def _score(value: float, entry: Mapping[str, Any]) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:.{entry['digits']}f} {entry['unit']}".strip()


def _groups(summary: Mapping[str, Any]) -> Html:
    groups = summary.get("groups")
    if not isinstance(groups, list):
        return Html("")
    rows = []
    for group in groups:
        if not group["targets"]:
            continue
        psnr, found = group["metrics"]["psnr"], group["identification"]
        rows.append(
            {
                "images behind a target": group["support_size"],
                "targets": group["targets"],
                "clients": group["clients"],
                "PSNR (dB)": psnr["mean"],
                "floor (dB)": psnr["floor_mean"],
                "over floor (dB)": _with(psnr["difference"], psnr["leakage_ci"]),
                "found": found["hit1"],
                "a guess that knows the class": found["guess1"],
                "verdict": group["verdict"],
            }
        )
    return html.table(rows, label="Results by number of images behind a target")


def _with(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "-"
    shown = f"{value:+.2f}"
    return shown if interval is None else f"{shown} [{interval[0]:+.2f}, {interval[1]:+.2f}]"


def _single(frame: pd.DataFrame) -> Html:
    if "group" in frame:  # the attacked targets first, what stands beside them after
        frame = frame[["group", *(c for c in frame.columns if c != "group")]]
    more = ""
    if len(frame) > SHOWN_ROWS:
        more = f" The first {SHOWN_ROWS} of {len(frame)} rows; scores.csv has all."
    rows = [
        {str(key): None if _absent(value) else value for key, value in row.items()}
        for row in frame.head(SHOWN_ROWS).to_dict("records")
    ]
    return html.join(
        html.paragraph(f"Click a heading to sort.{more}", soft=True),
        html.table(rows, label="Scores of single targets", tall=True),
        html.details("Columns", html.facts(COLUMNS_OF_SINGLE)) if "hit1" in frame else Html(""),
    )


COLUMNS_OF_SINGLE = {
    "group": "target: what was attacked; true, actual, ceiling: what stands beside it",
    "label": "class of the target, -1 where it mixes several",
    "support_size": "images that entered the target",
    "..._floor": "the same metric of the floor that is best on all other clients' targets",
    "floor": "name of that floor by PSNR",
    "psnr_mismatched": "PSNR of the attack's answers to other uploads",
    "original": "number of the matched image, -1 for a mean image",
    "fit": "match to the upload that the attack attained, in its own objective; lower is closer",
    "hit1, hit5": "whether the true image was the nearest of the line-up, or among the first five",
    "rr": "one over its rank in the line-up",
}
"""Columns of the table of single targets, for attacks on images."""


def _absent(value: object) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _floors(result: AttackResult) -> Html:
    meanings = result.card.summary.get("floors")
    if not isinstance(meanings, Mapping):
        return Html("")
    if not isinstance(result.card, ImageCard):
        return html.facts(meanings)
    rows = [
        {
            "floor": row["floor"],
            "answer": meanings[row["floor"]],
            **{str(k): v for k, v in row.items() if k != "floor"},
        }
        for row in result.card.scores[TARGET].floors.to_dict("records")
    ]
    return html.table(rows, label="Means of every floor")


def _notes(result: AttackResult) -> list[str]:
    record = result.record
    given = [
        *result.card.summary.get("notes", ()),
        *record.get("recovery_notes", ()),
        *result.game.run.record.get("data_notes", ()),
    ]
    if record.get("stopped_because"):
        given.append(f"The attack stopped: {record['stopped_because']}.")
    return [note for note in dict.fromkeys(given) if note]


def _definitions(result: AttackResult) -> Html:
    summary = result.card.summary
    words: dict[str, str] = {}
    metrics = summary.get("metrics")
    if isinstance(metrics, Mapping):
        words = {e["title"]: e["definition"] for e in metrics.values() if e.get("definition")}
        words["PSNR of the mean MSE"] = f"{_db(summary['psnr_of_mean_mse'])}; the table shows the "
        words["PSNR of the mean MSE"] += "mean of PSNRs, which is never lower (Jensen)"
        rows = [("found among N", DEFINITIONS["found among N"])]
    else:
        names = [measure.name for measure in result.card.measures()]
        names += [row["metric"] for row in result.table()]
        rows = [(k, v) for k, v in DEFINITIONS.items() if any(k in name for name in names)]
    shared = [(key, DEFINITIONS[key]) for key in ("floor", "over floor")]
    if isinstance(result.card, ImageCard):
        shared.append(("ceiling", DEFINITIONS["ceiling"]))
        shared.append(("which floor", summary["floor_rule"]))
        shared.append(("diverged", summary["diverged_rule"]))
        shared.append(("intervals", summary["intervals"]["method"]))
    words |= dict(rows + shared)
    if summary.get("verdict_rule"):
        words["verdict"] = summary["verdict_rule"]
    rules = result.record.get("rules") or {}
    table = [
        {
            "matching rule": rule,
            "PSNR (dB)": entry["mean"],
            "floor (dB)": entry["floor_mean"],
            "floor": entry["floor"],
            "over floor (dB)": entry["leakage"],
            "n": entry["n"],
        }
        for rule, entry in rules.items()
    ]
    return html.join(
        html.facts(words),
        html.details(
            "The same answers under every matching rule",
            html.table(table, label="PSNR under every matching rule"),
        ),
    )


def _db(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} dB"


def _settings(values: Mapping[str, Any], label: str) -> Html:
    body = yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=False)
    return html.preformatted(body, label=label)


def _provenance(run: Run, record: Mapping[str, Any]) -> dict[str, str]:
    memory = record.get("peak_memory", {})
    final = run.record.get("final", {})
    moment = run.settings.protocol.headline
    accuracy = final.get(f"acc_{moment}")
    return {
        "Status": str(record["status"]),
        "Started": str(record["started"]),
        "Took": f"{human_seconds(record['wall_s'])}, of which the attack "
        f"{human_seconds(record['attack_s'])}",
        "Peak memory": ", ".join(
            f"{name.removesuffix('_bytes')} {human_bytes(size)}" for name, size in memory.items()
        ),
        "Device": str(record["device"]),
        "Versions": _versions(record),
        "Run": f"{run.name}, trained {run.record['started']} on {run.record['device']} in "
        f"{human_seconds(run.record['wall_s'])}",
        "Accuracy": "-"
        if accuracy is None
        else f"{accuracy:.3f} +- {final[f'acc_{moment}_sd']:.3f} over clients ({moment})",
        "Data (SHA-256)": str(run.record["data_sha256"]),
        "Partition (SHA-256)": ", ".join(run.record["partition_sha256"]),
    }


def _versions(record: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in record["versions"].items())


# --- benchmarks ------------------------------------------------------------------------------


def write_benchmark_report(
    result: BenchmarkResult,
    wanted: Benchmark,
    jobs: Sequence[Mapping[str, Any]],
    runs: Path,
) -> Path:
    """Write the page of a benchmark into its folder, and beside it the settings that repeat it.

    Args:
        jobs: results of all jobs, as they lie on disk (see `sweep.run_job`).
        runs: folder of the runs.

    Returns:
        The page's file.
    """
    folder = result.folder
    sweep = _sweep(wanted)
    text = yaml.safe_dump(sweep, sort_keys=False, default_flow_style=False)
    files.write_text(folder / SWEEP, text)
    failed = [job for job in jobs if job["status"] != COMPLETE]
    sections = [
        Section("Result", html.table(list(result.table()), label="Variants side by side")),
        Section("Figures", _figures(folder)),
        Section("Failures", html.join(*(_failure(job) for job in failed))),
        *(
            Section(variant.label, _variant(variant.label, result, jobs, runs))
            for variant in wanted.variants
        ),
        Section("All trainings", html.table([_job(job) for job in jobs], label="All trainings")),
        Section("What the words mean", html.facts({**DEFINITIONS, **COLUMNS})),
        Section("Settings", html.preformatted(text, label="Settings of the benchmark")),
        Section("How it was made", html.facts(_made(jobs, runs))),
        Section(
            "Again",
            html.join(
                html.paragraph("In the folder of this page:"),
                html.preformatted(
                    f"fedre-benchmark {SWEEP} --out . --runs-dir {_relative(runs, folder)}",
                    label="Command",
                ),
                html.paragraph("What is finished is not repeated; --retry repeats what failed."),
            ),
        ),
    ]
    bad = f", {len(failed)} failed" if failed else ""
    seeds = ", ".join(map(str, wanted.seeds))
    lead = html.join(
        html.paragraph(
            f"{plural(len(wanted.variants), 'variant')}, seeds {seeds}: "
            f"{plural(len(jobs), 'training')}{bad}."
        ),
        html.flag("INCOMPLETE", "failed trainings are in no mean; see Failures.")
        if failed
        else Html(""),
    )
    path = folder / NAME
    files.write_text(path, html.page(f"Benchmark {wanted.name}", lead, sections))
    return path


COLUMNS = {
    "images, dB over floor": "PSNR over the floor of the strongest attack on images that the "
    "suite holds; '-': no such attack could read the upload, which does not mean that it is safe",
    "found, prototypes, labels, membership": "the strongest attack's value, its floor in brackets",
    "Pareto": "no other variant is at least as good in accuracy, scalars and leakage of images and "
    "better in one",
    "+-": "sd over seeds",
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
    }
    plain = json.loads(json.dumps(sweep, default=str))
    return {key: value for key, value in plain.items() if value not in (None, {}, [])}


def _variant(
    label: str, result: BenchmarkResult, jobs: Sequence[Mapping[str, Any]], runs: Path
) -> Html:
    part = result.summary
    rows: list[dict[str, object]] = []
    if len(part):
        for row in part[part["label"] == label].to_dict("records"):
            if _absent(row["attack"]):
                continue
            rows.append(
                {
                    "attack": row["attack"],
                    "target": row["target"],
                    "threat": row["threat"],
                    "measure": f"{row['measure']} {row['unit'] or ''}".strip(),
                    "value": _mean_sd(row["value"], row["value_sd"]),
                    "floor": _mean_sd(row["floor"], None),
                    "over floor": _mean_sd(row["leakage"], row["leakage_sd"]),
                    "n": row["n"],
                    "seeds": row["seeds"],
                    "counterfactual": "yes" if row["counterfactual"] is True else "",
                }
            )
    own = [job for job in jobs if job["label"] == label]
    verdicts: list[dict[str, object]] = []
    for job in own:
        for entry in job["attacks"]:
            if "verdict" not in entry:  # as planned: the job never got so far
                continue
            page = runs / str(job["run"]) / "attacks" / entry.get("folder", "") / NAME
            link = Link("report", quote(_relative(page, result.folder)))
            verdicts.append(
                {
                    "attack": f"{entry['attack']} on {entry['target']}",
                    "seed": job["seed"],
                    "verdict": entry["verdict"],
                    "because": entry["because"],
                    "page": link if page.is_file() else None,
                }
            )
    none = "No attack of the suite could read its uploads, which does not mean that they are safe."
    finished = any(job["status"] == COMPLETE for job in own)
    return html.join(
        html.table(rows, label=f"Measures of {label}")
        or html.paragraph(none if finished else "No training has finished."),
        html.details("Verdicts of single attacks", html.table(verdicts, label="Verdicts")),
    )


def _mean_sd(mean: float | None, sd: float | None) -> str:
    if mean is None or pd.isna(mean):
        return "-"
    return f"{mean:.4g}" + ("" if sd is None or pd.isna(sd) else f" +- {sd:.2g}")


def _job(job: Mapping[str, Any]) -> dict[str, object]:
    final = job.get("final") or {}
    took = job.get("wall_s")
    return {
        "variant": job["label"],
        "seed": job["seed"],
        "status": job["status"],
        "accuracy after local training": final.get("acc_post_local"),
        "accuracy after the broadcast": final.get("acc_post_broadcast"),
        "took (s)": None if took is None else round(took, 1),
        "run": job.get("run"),
    }


def _failure(job: Mapping[str, Any]) -> Html:
    return html.join(
        html.heading(f"{job['label']}, seed {job['seed']}"),
        html.paragraph(str(job.get("failure") or "no reason was recorded")),
        html.details(
            "Traceback",
            html.preformatted(str(job.get("traceback") or "none"), label="Traceback"),
        ),
    )


def _made(jobs: Sequence[Mapping[str, Any]], runs: Path) -> dict[str, str]:
    out = {}
    for job in jobs:
        path = runs / str(job.get("run")) / "record.json"
        if path.is_file():
            record = files.read_json(path)
            out = {
                "Started": record["started"],
                "Device": record["device"],
                "Versions": _versions(record),
            }
            break
    took = sum(job.get("wall_s") or 0.0 for job in jobs)
    return {**out, "Took": f"{human_seconds(took)} (sum over trainings)"}


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
