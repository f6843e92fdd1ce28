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


def silent(event: Event) -> None:
    """Listen to nothing."""
