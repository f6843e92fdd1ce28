"""Read every result below a folder, which may come from a stranger.

Files are read with the readers of the library: bounded sizes, declared types, hashes checked where
the work is complete, no settings resolved and no module imported. What is not as it was written is
an entry of status `DAMAGED` with the reason, and the rest is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pandas as pd
import torch

from fedre_privacy.core import files
from fedre_privacy.core.config import knobs, load_yaml
from fedre_privacy.core.errors import DamagedInputError, FedreError, MissingInputError
from fedre_privacy.core.manifest import MANIFEST, covering
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.schema import MOST_TEXT, Count, Line, Number, Seconds, Word, check
from fedre_privacy.core.units import human_seconds, plural
from fedre_privacy.defenses.base import defenses
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.eval.measures import FRONTIER, TABLE, Measure, group_name
from fedre_privacy.eval.report.frontier import pareto
from fedre_privacy.pages.attack import COUNTERFACTUAL, STEERED
from fedre_privacy.pages.shared import versions
from fedre_privacy.partition.base import partitions
from fedre_privacy.play.attack import PICTURES
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.folder import COMPLETE, FAILED, PARTIAL, Status
from fedre_privacy.runs.record import Record
from fedre_privacy.runs.settings import NAIVE
from fedre_privacy.steering.base import ACTIVE, steerings
from fedre_privacy.study.benchmark import panels_of, points_of, table_of
from fedre_privacy.study.results import frame, over_seeds
from fedre_privacy.study.sweep import read_result

from .entries import (
    ATTACK,
    AUDIT,
    BENCHMARK,
    DAMAGED,
    MEMBERSHIP,
    RUN,
    Column,
    Entry,
    Panel,
    Row,
    Score,
    Sheets,
    Table,
    Targets,
)
from .pictures import drawable, sheets

Values = Mapping[str, Any]

CLOSED = {"private", "uploads", "models", "checkpoints", "jobs"}
"""Folders that are not looked into for results."""

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


class _Verdict(TypedDict):
    word: Word
    because: Line
    rule: Line
    groups: dict[Word, Word]


class _Measure(TypedDict):
    """A `Measure` as `asdict` writes it."""

    key: Word
    title: Line
    definition: Line
    unit: Word
    digits: Count
    percent: bool
    higher_is_more_leakage: bool
    bounds: tuple[Number, Number] | None
    shown: Word
    group: Word
    value: Number | None
    sd: Number | None
    quantiles: tuple[Number, Number, Number] | None
    interval: tuple[Number, Number] | None
    floor: Number | None
    floor_interval: tuple[Number, Number] | None
    floor_name: Line | None
    floors_chosen: dict[Word, Count]
    against: Word
    over: Number | None
    over_interval: tuple[Number, Number] | None
    p: Number | None
    n: Count
    targets: Count
    clients: Count
    note: Line


class _Attack(TypedDict, total=False):
    """``record.json`` of an attack; what is not there before the end is absent."""

    run_manifest: str | None
    run: Word
    device: Line
    started: Word
    kind: Word
    counterfactual: bool
    active_server: Line
    trial: dict[Word, Line]
    isolation: Line
    wall_s: Seconds
    n: Count
    compared_with: Line
    verdict: _Verdict
    measures: list[_Measure]
    floors: dict[Word, Line]
    notes: list[Line]
    versions: dict[Word, Word]
    failure: str


class _Settled(TypedDict):
    """What ``config.yaml`` of a run or an attack says, as far as it is looked at by name."""

    data: NotRequired[Values | Word]
    protocol: NotRequired[Values | Word]
    defense: NotRequired[list[Values | Word]]
    steering: NotRequired[list[Values | Word]]
    partition: NotRequired[Values | Word]
    attack: NotRequired[Values | Word]
    threat: NotRequired[Values | Word]
    target: NotRequired[Word]
    train: NotRequired[Values]
    eval: NotRequired[Values]


class _Audit(TypedDict):
    status: Status
    level: Word
    run: Word
    Claim: Line
    Game: Line
    Attacker: Line
    trials: Count
    right: Count
    p: Number
    shown: Number
    ceiling: Number
    alpha: Number
    verdict: Word
    because: Line
    promised: NotRequired[Number | None]


class _Guessed(TypedDict):
    auc: Number
    auc_interval: tuple[Number, Number]
    auc_within: Number | None
    knows: NotRequired[Line]


class _Membership(TypedDict):
    status: Status
    Worlds: Line
    Game: Line
    Attacker: Line
    training: Values
    worlds: Count
    slots: Count
    seconds: Seconds
    attacks: dict[Word, _Guessed]
    floors: dict[Word, _Guessed]
    primary: Word
    exposed: list[dict[Word, Line]]
    verdict: Line


class _State(TypedDict):
    status: Status


@dataclass(frozen=True)
class _Place:
    """A folder with a result.

    Args:
        root: of everything that is viewed.
        truth: whether what is private is read.
        split: names data and partition of the run that it belongs to; empty where not known.
    """

    root: Path
    folder: Path
    kind: str
    truth: bool
    split: str = ""

    @property
    def path(self) -> str:
        """Relative to the root, with slashes; its own name where it is the root."""
        path = self.folder.relative_to(self.root).as_posix()
        return self.root.resolve().name if path == "." else path

    def checked(self, name: str, status: str) -> Path:
        """A file of the folder, which is the one that was listed where the work is complete."""
        path = self.folder / name
        if status == COMPLETE:
            covering(self.folder).check(path)
        return path


def collect(root: Path, *, truth: bool = True) -> list[Entry]:
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
    found: list[Entry] = []
    splits: dict[Path, str] = {}
    for folder, kind in _results(root):
        above = folder.parent.parent
        place = _Place(root, folder, kind, truth, splits.get(above, ""))
        entry = _read(place)
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
    return _completed(found)


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


def _read(place: _Place) -> Entry:
    try:
        return READERS[place.kind](place)
    except FedreError as error:
        return Entry(place.kind, place.path, DAMAGED, _short(" ".join(error.problems), place))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return Entry(place.kind, place.path, DAMAGED, f"not readable: {type(error).__name__}")


def _short(words: str, place: _Place) -> str:
    """A message without the folders above the root, which are nobody's business."""
    return words.replace(f"{place.root}{os.sep}", "").replace(str(place.root), place.path)


def _completed(found: Sequence[Entry]) -> list[Entry]:
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


def _settings(place: _Place, status: str) -> dict[str, Any]:
    """The settings of a run or an attack; where the truth is left out, without those of the data.

    Raises:
        FedreError: no file of settings, or changed.
    """
    path = place.checked("config.yaml", status)
    values = load_yaml(path).values
    check(values, _Settled, path)
    return _open(place, values)


def _open(place: _Place, settings: Values) -> dict[str, Any]:
    """Settings; where the truth is left out, of the data set its name alone."""
    if place.truth or "data" not in settings:
        return dict(settings)
    return {**settings, "data": {"name": _name(settings["data"])}}


def _name(part: object) -> str:
    """The name of a part in settings."""
    return str(part.get("name", "?")) if isinstance(part, Mapping) else str(part or "")


def _part(given: object, registry: Registry[Any]) -> str:
    """A part as on the command line, ``name:key=value,...``, without settings of their defaults."""
    if not isinstance(given, Mapping):
        return str(given or "")
    name = _name(given)
    usual = (
        {k.name: k.default for k in knobs(registry.get(name))} if name in registry.names() else {}
    )
    more = [
        f"{key}={_part(value, registry) if isinstance(value, Mapping) else value}"
        for key, value in given.items()
        if key != "name" and value is not None and not (key in usual and usual[key] == value)
    ]
    return ":".join([_name(given), *([",".join(more)] if more else [])])


def _facets(settings: Values) -> dict[str, str]:
    """What a training is found by."""
    if "protocol" not in settings:
        return {}
    protocol, data = settings["protocol"], settings.get("data")
    scheme = protocol.get("entanglement") if isinstance(protocol, Mapping) else None
    path = data.get("path") if isinstance(data, Mapping) else None
    defences = [_part(one, defenses) for one in settings.get("defense") or ()]
    return {
        "protocol": _name(protocol),
        "scheme": _part(scheme, schemes),
        "defence": " + ".join(defences) or "none",
        "data": f"{_name(data)}:{Path(str(path)).stem}" if path else _name(data),
        "partition": _part(settings.get("partition"), partitions),
        **({"server": _part(s[0], steerings)} if (s := settings.get("steering")) else {}),
    }


def _seed(settings: Values) -> int | None:
    seed = settings.get("train", {}).get("seed")
    return seed if isinstance(seed, int) else None


def _run(place: _Place) -> Entry:
    status = files.read_json(place.folder / "record.json", _State)["status"]
    record = files.read_json(place.checked("record.json", status), Record)
    settings = _settings(place, status)
    facets, final = _facets(settings), record.get("final", {})
    name = facets.get("protocol", "")
    moment = protocols.get(name).headline if name in protocols.names() else "post_broadcast"
    rows = [
        {
            "accuracy": f"{final[key]:.3f}",
            "sd over clients": _number(final.get(f"{key}_sd")),
            "measured": f"{moment.replace('_', ' ')}, round {_number(final.get('round'), 0)}",
            "scalars up": _number(final.get("up_scalars"), 0),
            "scalars down": _number(final.get("down_scalars"), 0),
        }
        for key in (f"acc_{moment}",)
        if final.get(key) is not None
    ]
    facts = {"Training": record.get("summary", "")}
    facts |= {"Took": human_seconds(record["wall_s"])} if "wall_s" in record else {}
    active = record.get("active_server", "")
    bound = record.get("privacy", {}).get("bound", "")
    facts |= {"Bound": str(bound)} if bound else {}
    return Entry(
        RUN, place.path, status, _failure(status, record.get("failure", ""), place),
        facets=facets, seed=_seed(settings), started=record.get("started", ""),
        accuracy=final.get(f"acc_{moment}"), flags=_flags(active, "", False),
        facts=facts | _made(record, place.folder, status),
        tables=(Table("Result", rows),) if rows else (), settings=settings,
    )  # fmt: skip


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _failure(status: str, failure: str, place: _Place) -> str:
    if status == COMPLETE:
        return ""
    usual = "It is under way, or was interrupted; --resume goes on."
    return _short(failure, place) or (usual if status == PARTIAL else "no reason was recorded")


def _flags(active: str, system: str, counterfactual: bool) -> dict[str, str]:
    out = {"COUNTERFACTUAL": f"{COUNTERFACTUAL} {system} did."} if counterfactual else {}
    return out | ({ACTIVE: f"{active.removeprefix(ACTIVE).strip()}: {STEERED}"} if active else {})


def _made(record: Mapping[str, Any], folder: Path, status: str) -> dict[str, str]:
    """Where and with what it was made."""
    out = {"Device": str(record.get("device", ""))}
    out |= {"Versions": versions(record)} if "versions" in record else {}
    if status == COMPLETE:
        out["Manifest (SHA-256)"] = files.file_sha256(folder / MANIFEST)
    return {name: words for name, words in out.items() if words}


def _split_of(folder: Path) -> str:
    """A name of a run's data and partition; empty where its record cannot be read."""
    try:
        record = files.read_json(folder / "record.json", Record)
    except FedreError:
        return ""
    told = [record.get("data_sha256"), record.get("partition_sha256")]
    return _digest(told) if all(told) else ""


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


_KNOWN = {field.name for field in fields(Measure)}


def _attack(place: _Place) -> Entry:
    status = files.read_json(place.folder / "record.json", _State)["status"]
    record = files.read_json(place.checked("record.json", status), _Attack)
    settings = _settings(place, status)
    measures = [Measure(**_known(m)) for m in record.get("measures", ())]
    whole = [m for m in measures if not m.group]
    lead = next((m for m in whole if m.over is not None), None)
    word = record["verdict"]["word"] if "verdict" in record else ""
    evaluation = settings.get("eval", {})
    naive = ", naive" if evaluation.get("attacker") == NAIVE else ""
    facets = _facets(settings) | {
        "attack": _name(settings.get("attack")),
        "target": record.get("kind", settings.get("target", "")),
        "adversary": f"{_name(settings.get('threat'))}{naive}",
        **({"verdict": word} if word else {}),
    }
    system = facets.get("protocol", "the recorded system")
    facts = {name: " ".join(words.split()) for name, words in record.get("trial", {}).items()}
    facts |= {"Took": human_seconds(record["wall_s"])} if "wall_s" in record else {}
    facts |= {"Isolation": record["isolation"]} if "isolation" in record else {}
    facts |= {"Again": "fedre-attack --config config.yaml --runs-dir ../../.. (in its folder)"}
    return Entry(
        ATTACK, place.path, status, _failure(status, record.get("failure", ""), place),
        facets=facets, seed=_seed(settings), started=record.get("started", ""),
        because=record["verdict"]["because"] if word else "",
        score=None if lead is None else Score(lead.heading, lead.over or 0.0, lead.over_text()),
        n=record.get("n"),
        flags=_flags(record.get("active_server", ""), system, record.get("counterfactual", False)),
        facts=facts | _made(record, place.folder, status),
        tables=tuple(_tables(record, measures)), settings=settings,
        targets=_targets(place, settings, record, measures) if status == COMPLETE else None,
    )  # fmt: skip


def _known(given: Values) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key in _KNOWN}


def _tables(record: _Attack, measures: Sequence[Measure]) -> Iterator[Table]:
    rows = [
        {
            "targets": BESIDE.get(m.group) or group_name(m.group),
            "metric": m.heading,
            "this attack": m.value_text(),
            "floor": m.floor_text(),
            "reads as": m.over_text(),
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
    place: _Place, settings: Values, record: _Attack, measures: Sequence[Measure]
) -> Targets | None:
    path = place.checked("scores.csv", COMPLETE)
    if not path.is_file():
        return None
    try:
        rows = pd.read_csv(io.StringIO(files.read_text(path, MOST_TEXT)))
    except (ValueError, pd.errors.ParserError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise DamagedInputError(f"{path} is no table of scores: {words}.") from None
    if "group" in rows:
        rows = rows[rows["group"] == "target"].drop(columns="group").reset_index(drop=True)
    if not len(rows):
        return None
    pictures, marks = _pictures(place, len(rows))
    keys = _keys(place, settings, record, rows, marks)
    owners = rows["client"] if "client" in rows else rows.index
    clusters = tuple(f"{place.split or place.path} {owner}" for owner in owners)
    if "support_size" in rows:
        rows["behind"] = rows["support_size"].map(_behind)
    scores = {m.key: (m.heading, m.higher_is_more_leakage) for m in measures if m.key in rows}
    if not place.truth:
        rows = rows[[name for name in rows if _is_open(str(name), scores)]]
    columns = {str(name): _column(rows[name]) for name in rows}
    doubts = tuple(name for name in DOUBTS if name in columns)
    return Targets(columns, scores, doubts, keys, clusters, pictures)


def _behind(size: float) -> str:
    """The group of a target by the number of images behind it."""
    return "1 image" if size == 1 else "2-30 images" if size <= 30 else ">30 images"


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
    place: _Place,
    settings: Values,
    record: _Attack,
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
        chosen = _digest([record["run_manifest"], record.get("kind"), settings.get("eval")])
        texts = [f"{chosen} {at}" for at in range(len(rows))]
    else:
        return ()
    seen: dict[str, int] = {}
    out = []
    for text in texts:
        seen[text] = seen.get(text, 0) + 1
        out.append(f"{text} {seen[text]}")
    return tuple(out)


def _pictures(place: _Place, count: int) -> tuple[dict[str, Sheets], list[int] | None]:
    """Sheets of what was recovered and of what it was compared with; marks of the targets."""
    out: dict[str, Sheets] = {}
    path = place.checked("recovered.safetensors", COMPLETE)
    recovered = files.read_tensors(path) if path.is_file() else {}
    images = recovered.get("images")
    if images is None or not drawable(images) or len(images) < count:
        return {}, None
    out["answer"] = sheets(images[:count])
    path = place.checked(PICTURES, COMPLETE)
    if not path.is_file():
        return out, None
    kept = files.read_tensors(path)
    truth, floor, of = (kept.get(name, torch.zeros(0)) for name in ("truth", "floor", "floor_of"))
    marks = kept.get("marks", torch.zeros(0))
    fits = len(truth) == len(of) == len(marks) == count and drawable(truth) and drawable(floor)
    if not fits or of.dim() != 1 or not 0 <= int(of.min()) <= int(of.max()) < len(floor):
        raise DamagedInputError(f"{path} does not hold a picture of each target.")
    if place.truth:
        out["truth"] = sheets(truth)
    out["floor"] = sheets(floor, of)
    return out, [int(mark) for mark in marks.tolist()]


def _audit(place: _Place) -> Entry:
    status = files.read_json(place.folder / "record.json", _State)["status"]
    record = files.read_json(place.checked("record.json", status), _Audit)
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


def _membership(place: _Place) -> Entry:
    record = files.read_json(place.folder / "record.json", _Membership)
    rows = [
        {
            "attack": name,
            "AUC [95 %]": f"{one['auc']:.3f} [{one['auc_interval'][0]:.3f}, "
            f"{one['auc_interval'][1]:.3f}]",
            "within class": _number(one["auc_within"]),
            "knows": one.get("knows", "-"),
        }
        for part in (record["attacks"], record["floors"])
        for name, one in part.items()
    ]
    word, _, because = record["verdict"].partition(": ")
    settings = _open(place, record["training"])
    check(settings, _Settled, place.folder / "record.json")
    best = record["attacks"].get(record["primary"])
    tables = [Table("Result", rows)]
    if place.truth and record["exposed"]:
        tables.append(Table("Records at risk (private)", record["exposed"]))
    return Entry(
        MEMBERSHIP, place.path, record["status"],
        facets=_facets(settings) | {"attack": record["primary"], "target": "membership",
                                    "adversary": "server with shadows", "verdict": word},
        seed=_seed(settings), because=because,
        score=None if best is None else Score(
            "AUC over chance", best["auc"] - 0.5, f"AUC {best['auc']:.3f}"),
        n=record["worlds"] * record["slots"],
        facts={key: " ".join(record[key].split()) for key in ("Worlds", "Game", "Attacker")}
        | {"Took": human_seconds(record["seconds"])},
        tables=tuple(tables), settings=settings,
    )  # fmt: skip


def _benchmark(place: _Place) -> Entry:
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
        points = points_of(summary, panel.key)
        best = tuple(point.label for point in pareto(points))
        panels.append(Panel(panel.title, tuple(points), best))
    tables = [Table("Variants side by side", table_of(summary))]
    if failed:
        lost = [
            {"variant": one["label"], "seed": one["seed"],
             "reason": _short(one.get("failure") or "no reason was recorded", place)}
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
    told = [_facets(_open(place, one["training"])) for one in results]
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


READERS = {
    RUN: _run,
    ATTACK: _attack,
    AUDIT: _audit,
    MEMBERSHIP: _membership,
    BENCHMARK: _benchmark,
}
"""How a folder of each kind is read."""
