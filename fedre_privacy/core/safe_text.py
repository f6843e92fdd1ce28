"""Text that strangers name: classes, clients, files and notes, made harmless where it is shown."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and line break
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # marks of direction, separators of lines
    "\ud800-\udfff]"  # halves of characters, which no file can hold
)
_FORMULA = re.compile(r"\s*[=+@-].", re.DOTALL)


def visible(text: str) -> str:
    r"""Return a text with control characters and marks of direction written as escapes.

    Line breaks and tabs stay.

    >>> print(visible("a\x1b[31mb\u202ec"))
    a\x1b[31mb\u202ec
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def csv_text(text: str) -> str:
    """Return the text of a cell such that no spreadsheet runs it as a formula.

    A text that begins with ``=``, ``+``, ``-`` or ``@`` gets an apostrophe before it, except a
    number and a sign that stands alone.

    >>> csv_text("=1+1"), csv_text("-3.2"), csv_text("-3.2 dB"), csv_text("-")
    ("'=1+1", '-3.2', "'-3.2 dB", '-')
    """
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(shown) and not _number(shown) else shown


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
