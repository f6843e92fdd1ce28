"""What jobs of a sweep found: as each lies on disk, as rows, and as means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

import pandas as pd

from fedre_privacy.core.typed_yaml import Count, Line, Number, Seconds, Size, Word
from fedre_privacy.eval.measures import RECORD
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.folder import COMPLETE, Status
from fedre_privacy.runs.settings import ADAPTIVE

Values = Mapping[str, Any]


class MeasureRow(TypedDict):
    """One measure of an attack, as far as tables and figures read it (see `Measure`)."""

    key: Word
    group: Word
    title: Line
    unit: Word
    shown: Literal["record", "table", "comparison", "frontier"]
    value: Number | None
    floor: Number | None
    over: Number | None
    over_interval: tuple[Number, Number] | None
    n: Count
    definition: Line


class PartName(TypedDict):
    """The name of a part, in settings."""

    name: Word


class TrainingSettings(TypedDict):
    """The settings of a training, as far as tables read them."""

    protocol: PartName
    train: Values


class JobAttack(TypedDict):
    """One attack of a job, as it lies on disk."""

    attack: Word
    answers: Word
    target: Word
    threat: Word
    rounds_limit: Count | None
    attacker: NotRequired[Word]
    verdict: Word
    because: Line
    round: NotRequired[Count]
    counterfactual: NotRequired[bool]
    folder: NotRequired[str]
    measures: NotRequired[list[Values]]


class JobResult(TypedDict):
    """The result of a job, as it lies on disk; what a failure prevented is absent."""

    label: Line
    seed: Count
    training: Values
    status: Status
    attacks: list[JobAttack]
    wall_s: Seconds | None
    run: NotRequired[Word]
    final: NotRequired[dict[Word, Number | None]]
    dim: NotRequired[Size]
    architectures: NotRequired[list[Word]]
    predicted: NotRequired[dict[Word, Number] | None]
    round_s: NotRequired[Seconds]
    failure: NotRequired[str]
    traceback: NotRequired[str]


def frame(results: Sequence[JobResult]) -> pd.DataFrame:
    """One row per job, attack and measure; jobs without an attack have one row.

    Columns: label, seed, status, protocol, acc_post_local, acc_post_broadcast, accuracy (the
    protocol's headline moment), shared_accuracy (the same on the shared test set), up_scalars,
    down_scalars (per round, complete and ``_paper``),
    up_bytes, down_bytes, round_s (seconds of the fastest round), attack, answers (its question),
    target, threat, attacker (adaptive or naive), round (attacked),
    rounds_limit (latest rounds read; empty: all), counterfactual, verdict, folder; measure (its
    key), group (empty: all targets), title, unit, shown (the farthest of `measures.PLACES`),
    value, floor, over (the floor; positive is more leakage), low, high (interval of `over`), n.
    """
    rows = []
    for result in results:
        head = _head(result)
        lines = [
            {
                **{key: entry.get(key) for key in ATTACK_KEYS},
                "round": entry.get("round", result["training"].get("train", {}).get("rounds")),
                "rounds_limit": entry.get("rounds_limit"),
                "attacker": entry.get("attacker", ADAPTIVE),
                "measure": measure["key"],
                **{key: measure[key] for key in MEASURE_KEYS},
                "low": measure["over_interval"][0] if measure["over_interval"] else None,
                "high": measure["over_interval"][1] if measure["over_interval"] else None,
            }
            for entry in result["attacks"]
            for measure in entry.get("measures", ())
            if measure["shown"] != RECORD
        ]
        rows += [{**head, **line} for line in lines or [{}]]
    return pd.DataFrame(rows)


ATTACK_KEYS = ("attack", "answers", "target", "threat", "counterfactual", "verdict", "folder")
MEASURE_KEYS = ("group", "title", "unit", "shown", "value", "floor", "over", "n")
ROUNDS = ("round", "rounds_limit")
WHICH = ("attack", "target", "threat", "attacker", *ROUNDS)
"""Columns that tell attacks on a training apart."""
ROUND_SECONDS = "round_s"
SHARED_ACCURACY = "shared_accuracy"
PREDICTED = ("predicted_s_min", "predicted_error")
TRAFFIC = tuple(
    f"{way}_{what}"
    for way in ("up", "down")
    for what in ("scalars", "scalars_paper", "bytes")
)  # fmt: skip


def _head(result: JobResult) -> dict[str, object]:
    final = result.get("final") or {}
    name = result["training"]["protocol"]["name"]
    moment = protocols.get(name).headline if name in protocols.names() else "post_broadcast"
    return {
        "label": result["label"],
        "seed": result["seed"],
        "status": result["status"],
        "failure": result.get("failure"),
        "protocol": name,
        "run": result.get("run"),
        "accuracy": final.get(f"acc_{moment}"),
        SHARED_ACCURACY: final.get(f"acc_shared_{moment}"),
        "acc_post_local": final.get("acc_post_local"),
        "acc_post_broadcast": final.get("acc_post_broadcast"),
        **{key: final.get(key) for key in TRAFFIC},
        ROUND_SECONDS: result.get(ROUND_SECONDS),
        "predicted_s_min": (result.get("predicted") or {}).get("s_min"),
        "predicted_error": (result.get("predicted") or {}).get("recovery_error"),
    }


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean, sd and number of seeds of each label, attack, round and measure; failures are counted.

    Columns: label, protocol, seeds, failed, accuracy, accuracy_sd, shared_accuracy,
    shared_accuracy_sd, the traffic columns, attack,
    answers, target, threat, attacker, round, rounds_limit, counterfactual, measure, group, title,
    unit, shown, value, value_sd, floor, over, over_sd, n.
    """
    whole = rows[rows["status"] == COMPLETE]
    if whole.empty:
        return pd.DataFrame()
    known = (*ATTACK_KEYS, *WHICH, "measure", *MEASURE_KEYS)
    absent = [key for key in known if key not in whole]
    whole = whole.assign(**dict.fromkeys(absent))
    failed = rows[rows["status"] != COMPLETE].groupby("label")["seed"].nunique()
    keys = ["label", *WHICH, "measure", "group"]
    same = ["protocol", "answers", "counterfactual", "title", "unit", "shown"]
    out = []
    for key, part in whole.groupby(keys, dropna=False, sort=False):
        row: dict[str, object] = {
            **dict(zip(keys, tuple(key), strict=True)),
            **{name: part[name].iloc[0] for name in same},
            "seeds": part["seed"].nunique(),
            "failed": int(failed.get(key[0], 0)),
            "n": int(part["n"].fillna(0).sum()),
        }
        numbers = part[
            ["accuracy", SHARED_ACCURACY, "value", "floor", "over", *PREDICTED, *TRAFFIC]
        ]
        mean, sd = numbers.astype(float).mean(), numbers.astype(float).std()
        row |= {str(name): value for name, value in mean.items()}
        row |= {f"{name}_sd": sd[name] for name in ("accuracy", SHARED_ACCURACY, "value", "over")}
        out.append(row)
    return pd.DataFrame(out)
