"""How long work reports itself: plain events, printed by whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .schema import Count, Line, Number, Seconds, Word


@dataclass(frozen=True)
class Event:
    """Something that happened, e.g. ``Event("train.round", {"round": 3, "of": 20})``."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Event], None]


KEYS: Mapping[str, Mapping[str, Any]] = {
    "note": {"text": Line},
    "train.round": {"round": Count, "of": Count, "loss": float, "accuracy": float | None},
    "train.reused": {"folder": str},
    "train.done": {"folder": str, "wall_s": Seconds},
    "attack.usual": {"attack": Word, "text": str},
    "attack.trial": {"lines": dict[Word, str]},
    "attack.step": {
        "step": Count, "of": Count, "first": Count, "rows": Count, "total": Count, "match": Any,
    },
    "attack.scoring": {},
    "attack.reused": {"folder": str},
    "attack.done": {"folder": str, "wall_s": Seconds},
    "toy.seed": {"done": Count, "of": Count},
    "sweep.plan": {"jobs": Count, "waiting": Count},
    "sweep.job": {
        "job": str, "status": Word, "failure": str | None, "wall_s": Seconds | None,
        "left_s": Number, "done": Count, "of": Count,
    },
}  # fmt: skip
"""Every event with its keys.

``reused``: something finished was found. ``attack.usual``: the attack that was chosen, and why.
``attack.trial``: what is attacked, by headings. ``attack.step``: where rows ``first`` to ``first +
rows`` of ``total`` are; match (rows,) is how well each matches its target by the attack's own
objective.
"""

EVENTS = {name: msgspec.defstruct("Event", list(keys.items())) for name, keys in KEYS.items()}

OF_ATTACKS = ("attack.step", "note")
"""Events that an attack may report."""


def declared(event: Event) -> Event | None:
    """An event with its declared keys and no others; None where it is not as declared."""
    try:
        found = msgspec.convert(event.data, EVENTS[event.name])
        return Event(event.name, msgspec.structs.asdict(found))
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
