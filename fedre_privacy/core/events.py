"""How long work reports itself: plain events, printed by whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened, e.g. ``Event("train.round", {"round": 3, "of": 20})``."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Event], None]


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
