"""How a verdict looks on a page: an icon and a colour beside its word."""

from __future__ import annotations

from fedre_privacy.auditing.claims import REFUTED
from fedre_privacy.eval.verdict import LEAKS, NO_EVIDENCE

FOUND, NOT_FOUND, OPEN = "found", "not-found", "open"
"""How a verdict looks: something was found, nothing was, or the question is open."""

LOOKS = {LEAKS: FOUND, REFUTED: FOUND, NO_EVIDENCE: NOT_FOUND}
"""By its word; others are open."""

ICONS = {
    FOUND: "M8 1 15.5 15H.5ZM7.2 6v4.5h1.6V6ZM7.2 12v1.6h1.6V12Z",
    NOT_FOUND: "M8 .5a7.5 7.5 0 1 0 0 15 7.5 7.5 0 0 0 0-15ZM8 2.3a5.7 5.7 0 1 1 0 11.4A5.7 5.7 0 "
    "0 1 8 2.3ZM4.8 7.2h6.4v1.6H4.8Z",
    OPEN: "M8 .5a7.5 7.5 0 1 0 0 15 7.5 7.5 0 0 0 0-15ZM8 2.3a5.7 5.7 0 0 1 0 11.4Z",
}
"""Outlines on a square of 16: a triangle with a sign, a ring with a bar, a ring half full."""


def look_of(word: str) -> str:
    """How a verdict of a word looks."""
    return LOOKS.get(word.lower(), OPEN)
