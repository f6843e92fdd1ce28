"""``report.html`` of an attack: one page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedre_privacy.core import files
from fedre_privacy.core.types import Reconstruction
from fedre_privacy.core.units import human_bytes, human_seconds, plural
from fedre_privacy.eval.score import LOST_RULE
from fedre_privacy.play.attack import AttackResult
from fedre_privacy.play.questions.images import TARGET, ImageCard
from fedre_privacy.play.questions.unscored import WORDS, Unscored

from . import html
from .html import Html, Section, Target
from .shared import DEFINITIONS, NAME, SHOWN_TARGETS, absent, figures, versions

SHOWN_ROWS = 1000
"""Rows of the table of single targets; the CSV has all."""

ORACLE = "the attacker was given what no real server has"

COUNTERFACTUAL = "the protocol does not upload what was attacked; it asks what it would leak if"


def attack_page(result: AttackResult) -> Path:
    """The page of an attack, written if it is not there."""
    path = result.folder / NAME
    return path if path.is_file() else write_attack_report(result)


def write_attack_report(result: AttackResult) -> Path:
    """Write the page of an attack into its folder, from its record, scores and figures.

    Returns:
        The file.
    """
    game, record, summary = result.game, result.record, result.card.summary
    run, settings = game.run, game.settings
    command, meaning = run.repeat(settings.attack.name, result.folder)
    sections = [
        Section("Result", _headline(result)),
        Section("Figures", figures(result.folder)),
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
                html.details("Recording", _settings(run.plain(), "Settings of the recording")),
            ),
        ),
        Section("How it was made", html.facts(_provenance(result))),
        Section(
            "Again",
            html.join(
                html.preformatted(command, label="Command"), html.paragraph(meaning, soft=True)
            )
            if command
            else Html(""),
        ),
    ]
    because = result.verdict().removeprefix(summary["verdict"]).lstrip(": ")
    lead = html.join(
        html.flag("COUNTERFACTUAL", f"{COUNTERFACTUAL} {run.system} did.")
        if game.counterfactual
        else Html(""),
        html.flag("NOT SCORED", "no truth was given: no number here compares with true images.")
        if isinstance(result.card, Unscored)
        else Html(""),
        html.flag("ORACLE", f"{ORACLE}: {', '.join(record['oracles'])}.")
        if record["oracles"]
        else Html(""),
        html.verdict(summary["verdict"], because),
        html.facts(
            dict(run.headline())
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
            **({"metric": row["metric"], "this attack": row["attack"]} if "metric" in row else {}),
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


def _targets(result: AttackResult) -> Html:
    card = result.card
    if isinstance(card, Unscored):
        return _unscored(card)
    if not isinstance(card, ImageCard):
        return Html("")
    scores, recovered = card.scores[TARGET], card.recovered[TARGET].images
    if recovered.shape[1] not in (1, 3):
        return html.paragraph("Images of this many channels cannot be shown.")
    entries, classes = scores.summary["metrics"], result.game.run.class_names
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


def _unscored(card: Unscored) -> Html:
    """What was recovered of targets without truth."""
    outcome = card.outcome
    if not isinstance(outcome, Reconstruction) or outcome.images.shape[1] not in (1, 3):
        return Html("")
    shown = []
    for row in card.frame().head(SHOWN_TARGETS).to_dict("records"):
        at = int(row["target"])
        said = {"fit": f"{row['fit']:.3g}"}
        if "residual" in row:
            said = {
                "residual": f"{row['residual']:.3g} (grey image {row['grey']:.3g})",
                "to other targets": f"{row['mismatched']:.3g}",
            }
        title = f"Target {at}: client {row['client']}, class {row['label']}"
        shown.append(Target(title, {"recovered": html.png(outcome.images[at])}, said))
    return html.gallery(shown)


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
        {str(key): None if absent(value) else value for key, value in row.items()}
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
        *result.game.run.notes,
    ]
    if record.get("stopped_because"):
        given.append(f"The attack stopped: {record['stopped_because']}.")
    return [note for note in dict.fromkeys(given) if note]


def _definitions(result: AttackResult) -> Html:
    summary = result.card.summary
    if isinstance(result.card, Unscored):
        return html.facts(WORDS if "residual" in result.frame() else {})
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


def _provenance(result: AttackResult) -> dict[str, str]:
    record = result.record
    memory = record.get("peak_memory", {})
    return {
        "Status": str(record["status"]),
        "Started": str(record["started"]),
        "Took": f"{human_seconds(record['wall_s'])}, of which the attack "
        f"{human_seconds(record['attack_s'])}",
        "Peak memory": ", ".join(
            f"{name.removesuffix('_bytes')} {human_bytes(size)}" for name, size in memory.items()
        ),
        "Device": str(record["device"]),
        "Versions": versions(record),
        **result.game.run.provenance(),
    }
