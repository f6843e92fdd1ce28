"""How long work reports itself: plain events, printed by whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from .typed_yaml import Count, Line


@dataclass(frozen=True)
class Event:
    """Something that happened, e.g. ``Event("train.round", {"round": 3, "of": 20})``."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Event], None]


class Step(TypedDict):
    """Rows ``first`` to ``first + rows`` of ``total`` are so far.

    Shape: match (rows,), how well each matches its target by the attack's own objective.
    """

    step: Count
    of: Count
    first: Count
    rows: Count
    total: Count
    match: Any


class Note(TypedDict):
    """Words for people."""

    text: Line


OF_ATTACKS: Mapping[str, type] = {"attack.step": Step, "note": Note}
"""Events that an attack may report, and what they hold."""

EVENTS: Mapping[str, frozenset[str]] = {
    "note": frozenset({"text"}),
    "features.computed": frozenset({"done", "of", "left_s"}),
    "train.round": frozenset({"round", "of", "loss", "accuracy"}),
    "train.reused": frozenset({"folder"}),
    "train.done": frozenset({"folder", "wall_s"}),
    "attack.usual": frozenset({"attack", "text"}),
    "attack.trial": frozenset({"lines"}),
    "attack.step": frozenset({"step", "of", "first", "rows", "total", "match"}),
    "attack.scoring": frozenset(),
    "attack.reused": frozenset({"folder"}),
    "attack.done": frozenset({"folder", "wall_s"}),
    "toy.seed": frozenset({"done", "of"}),
    "sweep.plan": frozenset({"jobs", "waiting"}),
    "sweep.job": frozenset({"done", "of", "job", "status", "failure", "wall_s", "left_s"}),
}
"""Every event with its keys."""


def only_an_attacks(report: Report) -> Report:
    """A way to report on which an attack's own events pass, as they are declared, and no others."""
    from .answers import numbers, real

    def passed(event: Event) -> None:
        try:
            data: Any = msgspec.convert(event.data, OF_ATTACKS[event.name])
            if "match" in data:
                data["match"] = numbers(real(data["match"])).reshape(-1)
        except (LookupError, TypeError, ValueError, RecursionError, OverflowError):
            return
        report(Event(event.name, data))

    return passed


def noted_once(report: Report) -> Callable[[str], None]:
    """A way to report a note (event ``note`` with its text) that says the same thing once only."""
    said: set[str] = set()

    def note(text: str) -> None:
        if text not in said:
            said.add(text)
            report(Event("note", {"text": text}))

    return note


def silent(event: Event) -> None:
    """Listen to nothing."""
