"""How long work reports itself: plain events, printed by whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from .schema import Count, Line, Number, Seconds, Word


@dataclass(frozen=True)
class Event:
    """Something that happened, e.g. ``Event("train.round", {"round": 3, "of": 20})``."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Event], None]


class Round(TypedDict):
    """A round of a training is over."""

    round: Count
    of: Count
    loss: float
    accuracy: float | None


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


class Lines(TypedDict):
    """What is attacked, in lines by their headings."""

    lines: dict[Word, str]


class Usual(TypedDict):
    """The attack that was chosen, and why."""

    attack: Word
    text: str


class Note(TypedDict):
    """Words for people."""

    text: Line


class Reused(TypedDict):
    """Something finished was found."""

    folder: str


class Done(TypedDict):
    """Something is finished."""

    folder: str
    wall_s: Seconds


class Part(TypedDict):
    """So many pieces of work are over."""

    done: Count
    of: Count


class Plan(TypedDict):
    """How much there is to do."""

    jobs: Count
    waiting: Count


class Job(Part):
    """A job of a benchmark is over."""

    job: str
    status: Word
    failure: str | None
    wall_s: Seconds | None
    left_s: Number


class Empty(TypedDict):
    """Nothing beside the name."""


EVENTS: Mapping[str, type] = {
    "note": Note,
    "train.round": Round,
    "train.reused": Reused,
    "train.done": Done,
    "attack.usual": Usual,
    "attack.trial": Lines,
    "attack.step": Step,
    "attack.scoring": Empty,
    "attack.reused": Reused,
    "attack.done": Done,
    "toy.seed": Part,
    "sweep.plan": Plan,
    "sweep.job": Job,
}
"""Every event with its keys."""

OF_ATTACKS = ("attack.step", "note")
"""Events that an attack may report."""


def declared(event: Event) -> Event | None:
    """An event with its declared keys and no others; None where it is not as declared."""
    try:
        return Event(event.name, msgspec.convert(event.data, EVENTS[event.name]))
    except (KeyError, TypeError, msgspec.ValidationError, RecursionError, OverflowError):
        return None


def only_an_attacks(report: Report) -> Report:
    """A way to report on which an attack's own events pass, as they are declared, and no others."""
    from .answers import numbers, real

    def passed(event: Event) -> None:
        found = declared(event) if event.name in OF_ATTACKS else None
        if found is None:
            return
        if found.name == "attack.step":
            try:
                match = numbers(real(found.data["match"])).reshape(-1)
            except ValueError:
                return
            found.data["match"] = match
        report(found)

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
