"""``report.html`` of an attack: one page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path

import pandas as pd
from torch import Tensor

from fedre_privacy.active_server.base import ACTIVE
from fedre_privacy.core import files
from fedre_privacy.core.lock import lock_folder, remove_temporaries
from fedre_privacy.core.manifest import DRAWN, complete_manifest, figure_names, write_manifest
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.units import human_bytes, human_seconds, plural
from fedre_privacy.eval import Card, Measure, Scores
from fedre_privacy.eval.confidence import CONFIDENCE
from fedre_privacy.eval.measures import BETTER
from fedre_privacy.eval.report import save_figure
from fedre_privacy.experiments.attack import AttackResult
from fedre_privacy.experiments.questions.without_truth import WORDS, UnscoredAnswers

from . import html
from .html import Html, Target, pieces
from .page_parts import (
    DEFINITIONS,
    NAME,
    SHOWN_TARGETS,
    absent,
    figures,
    settings_of,
    title_of_attack,
    versions,
)

SHOWN_ROWS = 1000
"""Rows of the table of single targets; the CSV has all."""

FIRST_TARGETS = 6
"""Targets whose pictures stand beside the verdict."""

COUNTERFACTUAL = "the protocol does not upload what was attacked; it asks what it would leak if"


STEERED = "the server of this run did not follow the protocol; clients were not told."


def attack_page(result: AttackResult) -> Path:
    """The page of an attack; it and the figures are made if ``drawn.json`` lists none there."""
    there = NAME in figure_names(result.folder)
    return result.folder / NAME if there else write_attack_report(result)


def write_attack_report(result: AttackResult) -> Path:
    """Draw the figures of an attack into its folder, and write its page from these and its record.

    Returns:
        The file.
    """
    with lock_folder(result.folder, wait=True), files.private():
        remove_temporaries(result.folder)
        drawn = _draw(result)
        path = result.folder / NAME
        files.write_text(path, _page_text(result))
        write_manifest(result.folder, [*drawn, path], name=DRAWN)
    return path


def _draw(result: AttackResult) -> list[Path]:
    """Write the figures, as PNG, PDF and SVG each; earlier versions listed them as recorded."""
    if any(name.endswith(".png") for name in complete_manifest(result.folder).entries):
        return []
    return [
        path
        for name, figure in result.figures().items()
        for path in save_figure(figure, result.folder / name)
    ]


def _page_text(result: AttackResult) -> str:
    trial, card = result.trial, result.card
    run, settings = trial.run, trial.settings
    command, meaning = run.repeat(settings, result.folder)
    flags = flags_of(run.active, run.system, trial.counterfactual)
    if isinstance(card, UnscoredAnswers):
        flags["NOT SCORED"] = "no truth was given: no number here compares with true images."
    lost = f", {card.diverged} diverged" if card.diverged else ""
    lost += f" ({card.lost_rule})" if lost and card.lost_rule else ""
    said = {name: " ".join(words.split()) for name, words in result.record["trial"].items()}
    targets = _targets(result)
    return html.fill_template(
        "attack.html",
        title=title_of_attack(settings.attack.name, trial.kind, run.system),
        name=run.name,
        card=card,
        flags=flags,
        trial={"Run": run.name} | dict(run.headline()) | said,
        counted=f"{card.n} of {plural(card.targets, 'target')}{lost}; {card.compared_with}.",
        figures=figures(result.folder),
        targets=targets,
        first=targets[:FIRST_TARGETS],
        first_words=_first_words(result, len(targets)),
        scored=isinstance(card, Scores) and isinstance(result.outcome, Reconstruction),
        sure=[m.line() for m in map(card.find, CONFIDENCE) if m is not None],
        most=SHOWN_TARGETS,
        single=_single(result.frame()),
        rows=len(result.frame()),
        columns=COLUMNS_OF_SINGLE if "hit1" in result.frame() else {},
        floors=_floors(result),
        notes=_notes(result),
        words=_definitions(result),
        rules=_by_rule(card),
        settings=settings_of(settings.plain(), "Settings of the attack"),
        recording=settings_of(run.plain(), "Settings of the recording"),
        made=_provenance(result),
        command=command,
        meaning=meaning,
    )


def flags_of(active: str, system: str, counterfactual: bool) -> dict[str, str]:
    """What a reader must know before any number, by the word that marks it."""
    out = {"COUNTERFACTUAL": f"{COUNTERFACTUAL} {system} did."} if counterfactual else {}
    return out | ({ACTIVE: f"{active.removeprefix(ACTIVE).strip()}: {STEERED}"} if active else {})


def _first_words(result: AttackResult, count: int) -> str:
    """Which targets stand beside the verdict."""
    sure = "confidence" in result.frame()
    some = plural(min(count, FIRST_TARGETS), "target")
    which = f"The {some} of which the attack is surest" if sure else f"The first {some}"
    return f"{which}, of {result.card.targets}."


def _targets(result: AttackResult) -> list[Target]:
    """Pictures of targets with their truth, in the order of the attack's own confidence."""
    scores, outcome = result.card, result.outcome
    if not isinstance(outcome, Reconstruction) or outcome.images.shape[1] not in (1, 3):
        return []
    if isinstance(scores, UnscoredAnswers):
        return _unscored_section(result, outcome.images)
    if not isinstance(scores, Scores):
        return []
    recovered = outcome.images
    classes = result.trial.run.class_names
    measures = [m for m in scores.whole() if f"{m.key}_floor" in scores.rows]
    shown = []
    listed = _surest_first(scores.own_rows)
    for row in listed.head(SHOWN_TARGETS).to_dict("records"):
        at, label = int(row["target"]), int(row["label"])
        made_of = plural(int(row["support_size"]), "image")
        kind = f"class {classes[label]}" if label >= 0 else "several classes"
        shown.append(
            Target(
                at,
                f"Target {at}: client {row['client']}, {kind}, of {made_of}",
                {
                    "truth (match)": html.png(scores.originals[at]),
                    "recovered": html.png(recovered[at]),
                    "floor": html.png(scores.floor_images[at]),
                },
                {
                    m.title: f"{_score(m, row[m.key])} (floor {_score(m, row[f'{m.key}_floor'])})"
                    for m in measures
                }
                | {
                    "found in the line-up": "yes" if row["hit1"] == 1 else "no",
                    "floor": str(row["floor"] or "none"),
                }
                | _own_word(row),
                f"diverged: {scores.lost_rule}" if row["diverged"] else "",
            )
        )
    return shown


def _unscored_section(result: AttackResult, images: Tensor) -> list[Target]:
    """What was recovered of targets without truth."""
    shown = []
    for row in _surest_first(result.frame()).head(SHOWN_TARGETS).to_dict("records"):
        at = int(row["target"])
        said = {"fit": f"{row['fit']:.3g}"}
        if "residual" in row:
            said = {
                "residual": f"{row['residual']:.3g} (grey image {row['grey']:.3g})",
                "to other targets": f"{row['mismatched']:.3g}",
            }
        title = f"Target {at}: client {row['client']}, class {row['label']}"
        said |= _own_word(row)
        shown.append(Target(at, title, {"recovered": html.png(images[at])}, said))
    return shown


def _surest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Targets in the order of the attack's own confidence, where it gave one."""
    if "confidence" not in rows:
        return rows
    return rows.sort_values("confidence", ascending=False, kind="stable", na_position="last")


def _own_word(row: Mapping[Hashable, object]) -> dict[str, str]:
    """What the attack says of its own answer, without the truth."""
    said = {}
    sure = row.get("confidence")
    if isinstance(sure, float) and sure == sure:
        said["confidence"] = f"{sure:.3f}"
    if row.get("certified") is True:
        said["certificate"] = "exact, by its own check"
    return said


def _score(of: Measure, value: float) -> str:
    return f"{of.number(value)} {of.unit}".strip()


def _single(frame: pd.DataFrame) -> list[dict[str, object]]:
    """The first rows of the table of single targets."""
    if "group" in frame:  # the attacked targets first, what stands beside them after
        frame = frame[["group", *(c for c in frame.columns if c != "group")]]
    return [
        {str(key): None if absent(value) else value for key, value in row.items()}
        for row in frame.head(SHOWN_ROWS).to_dict("records")
    ]


COLUMNS_OF_SINGLE = {
    "group": "target: what was attacked; true, actual, ceiling: what stands beside it",
    "label": "class of the target, -1 where it mixes several",
    "support_size": "images that entered the target",
    "..._floor": "the same metric of the floor that is best on all other clients' targets",
    "floor": "name of that floor by PSNR",
    "psnr_mismatched": "PSNR of the attack's answers to other uploads",
    "original": "number of the matched image, -1 for a mean image",
    "fit": "match to the upload that the attack attained, in its own objective; lower is closer",
    "confidence": "the attack's own score of its answer, without the truth; higher is surer",
    "explained": "share of the target that the answer makes again, when it is put in place of the "
    "true images",
    "certified": "whether the attack's own check says that the answer is exact",
    "hit1, hit5": "whether the true image was the nearest of the line-up, or among the first five",
    "rr": "one over its rank in the line-up",
}
"""Columns of the table of single targets, for attacks on images."""


def _floors(result: AttackResult) -> Html:
    card = result.card
    if not isinstance(card, Scores):
        return pieces.facts(card.floors)
    rows = [
        {
            "floor": row["floor"],
            "answer": card.floors[row["floor"]],
            **{str(k): v for k, v in row.items() if k != "floor"},
        }
        for row in card.floor_means.to_dict("records")
    ]
    return html.table(rows, label="Means of every floor")


def _notes(result: AttackResult) -> list[str]:
    record = result.record
    given = [
        *result.card.notes,
        *result.trial.run.notes,
    ]
    if record.get("stopped_because"):
        given.append(f"The attack stopped: {record['stopped_because']}.")
    return [note for note in dict.fromkeys(given) if note]


def _definitions(result: AttackResult) -> dict[str, str]:
    card = result.card
    if isinstance(card, UnscoredAnswers):
        return WORDS if "residual" in result.frame() else {}
    words = {m.title: m.definition for m in card.measures if m.definition and not m.group}
    words |= {key: DEFINITIONS[key] for key in ("floor", "over floor")}
    words |= {"ceiling": DEFINITIONS["ceiling"]} if isinstance(card, Scores) else {}
    return words | {**card.words, "verdict": card.verdict.rule}


def _by_rule(card: Card) -> list[dict[str, object]]:
    """The same answers under every matching rule."""
    return [
        {
            "matching rule": rule,
            measure.heading: measure.value_text(),
            "floor": measure.floor_text(),
            BETTER: measure.over_text(),
            "n": measure.n,
        }
        for rule, measure in (card.by_rule if isinstance(card, Scores) else {}).items()
    ]


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
        **result.trial.run.provenance(),
        "Manifest (SHA-256)": complete_manifest(result.folder).sha256,
    }
