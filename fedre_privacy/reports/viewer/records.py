"""What the records and settings of results hold, as far as the page reads them.

Each type is checked when a file is read; see `core.typed_yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from fedre_privacy.core.typed_yaml import Count, Line, Number, Seconds, Word
from fedre_privacy.runs.folder import Status

Values = Mapping[str, Any]


class VerdictRecord(TypedDict):
    """The verdict in ``record.json`` of an attack."""

    word: Word
    because: Line
    rule: Line
    groups: dict[Word, Word]
    findings: NotRequired[list[tuple[Word, Line]]]


class AttackRecord(TypedDict, total=False):
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
    verdict: VerdictRecord
    measures: list[Values]
    floors: dict[Word, Line]
    notes: list[Line]
    versions: dict[Word, Word]
    failure: str


class SettingsRecord(TypedDict):
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


class AuditRecord(TypedDict):
    """``record.json`` of an audit."""

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


class GuessesRecord(TypedDict):
    """One attack, or one floor, of a membership game."""

    auc: Number
    auc_interval: tuple[Number, Number]
    auc_within: Number | None
    knows: NotRequired[Line]


class MembershipRecord(TypedDict):
    """``record.json`` of a membership game."""

    status: Status
    Worlds: Line
    Game: Line
    Attacker: Line
    training: Values
    worlds: Count
    slots: Count
    seconds: Seconds
    attacks: dict[Word, GuessesRecord]
    floors: dict[Word, GuessesRecord]
    primary: Word
    exposed: list[dict[Word, Line]]
    verdict: Line


class StateRecord(TypedDict):
    """What every ``record.json`` says, whatever its kind."""

    status: Status
