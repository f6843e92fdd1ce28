"""Read the folder of an attack: its measures, its targets one by one, and their pictures."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from fedre_privacy.core import files
from fedre_privacy.core.errors import DamagedInputError
from fedre_privacy.core.typed_yaml import MOST_TEXT, convert_value
from fedre_privacy.core.units import human_seconds
from fedre_privacy.eval.measures import BETTER, TABLE, Measure, group_name
from fedre_privacy.experiments.attack import PICTURES
from fedre_privacy.reports.attack import flags_of
from fedre_privacy.runs.folder import COMPLETE
from fedre_privacy.runs.settings import NAIVE

from .entries import ATTACK, Bar, Column, ResultEntry, Score, Sheets, Table, Targets
from .folders import (
    ResultFolder,
    digest,
    facets_of,
    failure_of,
    made_with,
    name_of,
    seed_of,
    settings_of,
)
from .pictures import drawable, sheets, thumbnail
from .records import AttackRecord, StateRecord, Values, VerdictRecord

DOUBTS = ("fit", "spread", "expected_error", "s_min", "residual")
"""Columns of scores that an attack tells of itself."""

PLAIN = {"target", "client", "behind", "floor", "diverged", "label_used", "rounds_used", "grey",
         "mismatched", "score", "baseline", *DOUBTS}  # fmt: skip
"""Columns, beside measures and their floors, that tell nothing of the truth."""

BESIDE = {
    "true": "the true prototypes",
    "actual": "what was uploaded",
    "ceiling": "single representations (ceiling)",
}
"""What stands beside the targets of an attack, by group of its measures."""


def read_attack(place: ResultFolder) -> ResultEntry:
    """The entry of an attack, with its targets where it is complete."""
    status = files.read_json(place.folder / "record.json", StateRecord)["status"]
    path = place.checked("record.json", status)
    record = files.read_json(path, AttackRecord)
    settings = settings_of(place, status)
    measures = [convert_value(m, Measure, path) for m in record.get("measures", ())]
    whole = [m for m in measures if not m.group]
    lead = _leading_measure(whole)
    word = record["verdict"]["word"] if "verdict" in record else ""
    evaluation = settings.get("eval", {})
    naive = ", naive" if evaluation.get("attacker") == NAIVE else ""
    facets = facets_of(settings) | {
        "attack": name_of(settings.get("attack")),
        "target": record.get("kind", settings.get("target", "")),
        "adversary": f"{name_of(settings.get('threat'))}{naive}",
        **({"verdict": word} if word else {}),
    }
    system = facets.get("protocol", "the recorded system")
    facts = {name: " ".join(words.split()) for name, words in record.get("trial", {}).items()}
    facts |= {"Took": human_seconds(record["wall_s"])} if "wall_s" in record else {}
    facts |= {"Isolation": record["isolation"]} if "isolation" in record else {}
    facts |= {"Again": "fedre-attack --config config.yaml --runs-dir ../../.. (in its folder)"}
    complete = status == COMPLETE
    targets, small = _targets(place, settings, record, measures) if complete else (None, None)
    return ResultEntry(
        ATTACK, place.path, status, failure_of(status, record.get("failure", ""), place),
        facets=facets, seed=seed_of(settings), started=record.get("started", ""),
        because=_because(record["verdict"]) if word else "",
        score=None if lead is None else Score(lead.heading, lead.over or 0.0, lead.over_text()),
        n=record.get("n"),
        flags=flags_of(
            record.get("active_server", ""), system, record.get("counterfactual", False)
        ),
        facts=facts | made_with(record, place.folder, status),
        tables=tuple(_tables(record, measures)), settings=settings,
        targets=targets, thumbnail=small, bars=_bars(lead),
    )  # fmt: skip


def _because(verdict: VerdictRecord) -> str:
    """The reason of a verdict; where there are several findings, a line for each."""
    findings = verdict.get("findings", [])
    if len(findings) < 2:
        return verdict["because"]
    return "\n".join(f"{word.upper()}: {text}" for word, text in findings)


def _leading_measure(measures: Sequence[Measure]) -> Measure | None:
    """The measure by which most is shown, of those that the verdict rests on; else the first."""
    tested = [(m.over_interval[0] / m.margin, m) for m in measures if m.margin and m.over_interval]
    if tested:
        return max(tested, key=lambda one: one[0])[1]
    return next((m for m in measures if m.over is not None), None)


def _bars(lead: Measure | None) -> tuple[Bar, ...]:
    """The leading measure beside its floor."""
    if lead is None or lead.value is None or lead.floor is None:
        return ()
    if not (math.isfinite(lead.value) and math.isfinite(lead.floor)):
        return ()
    return Bar(lead.title, max(lead.value, 0.0)), Bar(lead.against, max(lead.floor, 0.0))


def _tables(record: AttackRecord, measures: Sequence[Measure]) -> Iterator[Table]:
    rows = [
        {
            "targets": BESIDE.get(m.group) or group_name(m.group),
            "metric": m.heading,
            "this attack": m.value_text(),
            "floor": m.floor_text(),
            BETTER: m.over_text(),
            "n": m.n,
        }
        for m in measures
        if m.is_in(TABLE) and (m.value is not None or not m.group)
    ]
    yield Table("Result", rows)
    if "floors" in record:
        yield Table("Floors", [{"floor": k, "answer": v} for k, v in record["floors"].items()])
    notes = [note for note in record.get("notes", ()) if note]
    if notes:
        yield Table("Notes", [{"note": note} for note in notes])


def _targets(
    place: ResultFolder, settings: Values, record: AttackRecord, measures: Sequence[Measure]
) -> tuple[Targets | None, bytes | None]:
    """The targets, and a thumbnail of the first."""
    path = place.checked("scores.csv", COMPLETE)
    if not path.is_file():
        return None, None
    try:
        rows = pd.read_csv(io.StringIO(files.read_text(path, MOST_TEXT)))
    except (ValueError, pd.errors.ParserError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise DamagedInputError(f"{path} is no table of scores: {words}.") from None
    if "group" in rows:
        rows = rows[rows["group"] == "target"].drop(columns="group").reset_index(drop=True)
    if not len(rows):
        return None, None
    pictures, marks, small = _pictures(place, len(rows))
    keys = _keys(place, settings, record, rows, marks)
    owners = rows["client"] if "client" in rows else rows.index
    clusters = tuple(f"{place.split or place.path} {owner}" for owner in owners)
    if "support_size" in rows:
        rows["behind"] = rows["support_size"].map(
            lambda size: "1 image" if size == 1 else "2-30 images" if size <= 30 else ">30 images"
        )
    scores = {m.key: (m.heading, m.higher_is_more_leakage) for m in measures if m.key in rows}
    if not place.truth:
        rows = rows[[name for name in rows if _is_open(str(name), scores)]]
    columns = {str(name): _column(rows[name]) for name in rows}
    doubts = tuple(name for name in DOUBTS if name in columns)
    return Targets(columns, scores, doubts, keys, clusters, pictures), small


def _is_open(name: str, scores: Mapping[str, object]) -> bool:
    """Whether a column may be shared: measures beside references, and what is not the truth."""
    return name in PLAIN or any(name == key or name.startswith(f"{key}_") for key in scores)


def _column(values: pd.Series[Any]) -> Column:
    if values.dtype == bool:
        return [int(value) for value in values]
    if pd.api.types.is_numeric_dtype(values):
        finite = values.astype(float)
        return [None if v != v or abs(v) == float("inf") else float(f"{v:.9g}") for v in finite]
    return [None if pd.isna(value) else str(value)[:200] for value in values]


def _keys(
    place: ResultFolder,
    settings: Values,
    record: AttackRecord,
    rows: pd.DataFrame,
    marks: Sequence[int] | None,
) -> tuple[str, ...]:
    """Texts that are equal where the truth is: the same images, or the same client and class.

    Without either, targets have the same truth in attacks on the same run that were told to choose
    them alike.
    """
    if marks is not None and place.split:
        texts = [f"{place.split} images {mark}" for mark in marks]
    elif place.split and "client" in rows and not {"support_size", "member"} & set(rows):
        told = "prototype" if "label" in rows else "labels"
        labels = rows["label"] if "label" in rows else [""] * len(rows)
        pairs = zip(rows["client"], labels, strict=True)
        texts = [f"{place.split} {told} {client} {label}" for client, label in pairs]
    elif record.get("run_manifest"):
        chosen = digest([record["run_manifest"], record.get("kind"), settings.get("eval")])
        texts = [f"{chosen} {at}" for at in range(len(rows))]
    else:
        return ()
    seen: dict[str, int] = {}
    out = []
    for text in texts:
        seen[text] = seen.get(text, 0) + 1
        out.append(f"{text} {seen[text]}")
    return tuple(out)


def _pictures(
    place: ResultFolder, count: int
) -> tuple[dict[str, Sheets], list[int] | None, bytes | None]:
    """Sheets of what was recovered and compared with, marks of the targets, a thumbnail."""
    out: dict[str, Sheets] = {}
    path = place.checked("recovered.safetensors", COMPLETE)
    recovered = files.read_tensors(path) if path.is_file() else {}
    images = recovered.get("images")
    if images is None or not drawable(images) or len(images) < count:
        return {}, None, None
    out["answer"] = sheets(images[:count])
    path = place.checked(PICTURES, COMPLETE)
    if not path.is_file():
        return out, None, thumbnail([images[:count]])
    kept = files.read_tensors(path)
    truth, floor, of = (kept.get(name, torch.zeros(0)) for name in ("truth", "floor", "floor_of"))
    marks = kept.get("marks", torch.zeros(0))
    fits = len(truth) == len(of) == len(marks) == count and drawable(truth) and drawable(floor)
    if not fits or of.dim() != 1 or not 0 <= int(of.min()) <= int(of.max()) < len(floor):
        raise DamagedInputError(f"{path} does not hold a picture of each target.")
    if place.truth:
        out["truth"] = sheets(truth)
    out["floor"] = sheets(floor, of)
    beside = place.truth and truth.shape[1:] == images.shape[1:]
    small = thumbnail([*([truth] if beside else []), images[:count]])
    return out, [int(mark) for mark in marks.tolist()], small
