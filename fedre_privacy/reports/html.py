"""Report pages: one HTML file with its images, style and script inside, readable anywhere.

The HTML, CSS and JavaScript lie in ``templates``. Functions return pieces of a page (`Html`). Text
given to them is escaped, pieces are not. A page asks for nothing from outside, works without its
script (tables are then unsorted, images small), and depends on its input alone, so the same record
gives the same bytes.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.safe_text import visible

from .verdict_icons import ICONS, look_of

Html = Markup
"""A finished piece of a page: text in it is escaped."""

TEMPLATES = Path(__file__).parent / "templates"

WIDE = 44
"""Characters from which a cell may be broken into lines."""

PHRASE = 16
"""Characters from which a text has room for some of its words in a line."""

_NUMBER = re.compile(r"[+-]?\d[\d,]*\.?\d*(?:[eE][+-]?\d+)?")
_WITHOUT_VALUE = ("", "-", "--")
_LINK_CHARACTERS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Link:
    """A cell that leads to a file beside the page.

    Args:
        to: relative path with forward slashes.
    """

    text: str
    to: str


@dataclass(frozen=True)
class Target:
    """One attacked target with its pictures.

    Args:
        number: among all targets.
        shots: heading to PNG, side by side, the truth first.
        note: what is odd about it, or empty.
    """

    number: int
    title: str
    shots: Mapping[str, bytes]
    scores: Mapping[str, str]
    note: str = ""


_TEMPLATES = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    finalize=lambda value: value if isinstance(value, Html) else visible(str(value)),
)
_TEMPLATES.globals |= {"icons": ICONS, "look_of": look_of}
_TEMPLATES.filters["base64"] = lambda data: base64.b64encode(data).decode("ascii")


class Pieces(Protocol):
    """Macros by name."""

    def __getattr__(self, name: str) -> Callable[..., Html]: ...


pieces = cast(Pieces, _TEMPLATES.get_template("pieces.html").module)
"""The macros of ``pieces.html``, which return `Html`; nothing is made of nothing."""


def join(*parts: Html) -> Html:
    """Put pieces one after the other."""
    return Html("\n").join(one for piece in parts if (one := piece.strip()))


@dataclass(frozen=True)
class _TableCell:
    """A cell of a table: its text, style, the number it is sorted by, and where it leads."""

    shown: str
    kind: str = ""
    value: str | None = None
    to: str | None = None


def table(rows: Sequence[Mapping[str, object]], *, label: str, tall: bool = False) -> Html:
    """Return a table that is sorted by a click on a heading, and scrolls in a box of its own.

    Args:
        rows: heading to cell: text, number, bool, None (an empty cell) or `Link`; headings are
            those of the first row.
        label: what it shows, for readers that hear the page.
    """
    if not rows:
        return Html("")
    heads = [(key, _all_numbers([row.get(key) for row in rows])) for key in rows[0]]
    cells = [[_cell(row.get(key), right) for key, right in heads] for row in rows]
    return pieces.table(heads, cells, label, tall)


def _all_numbers(values: Sequence[object]) -> bool:
    """Whether every cell of a column that holds a value holds a number."""
    numbers = [
        isinstance(value, Link) is False and _number(value) is not None and len(shown) <= WIDE
        for value in values
        if (shown := _display_value(value)) not in _WITHOUT_VALUE
    ]
    return bool(numbers) and all(numbers)


def _cell(value: object, right: bool) -> _TableCell:
    """The cell of a value; `right` for a column of numbers."""
    if isinstance(value, Link):
        return _TableCell(value.text, to=value.to)
    shown, number = _display_value(value), _number(value)
    if shown in _WITHOUT_VALUE:
        return _TableCell(shown, "number" if right else "", "")
    wide = len(shown) > WIDE
    if number is not None:
        kind = "words" if wide else "number" if right else ""
        return _TableCell(shown, kind, f"{number:.10g}")
    return _TableCell(shown, "words" if wide else "phrase" if len(shown) > PHRASE else "")


def _display_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        number = float(value)
        if not math.isfinite(number):
            return ""
        return f"{number:.0f}" if 1000 <= abs(number) < 1e7 else f"{number:.4g}"
    return str(value)


def _number(value: object) -> float | None:
    """The number by which a cell is sorted: a text's own where it begins with one."""
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int | float | np.integer | np.floating):
        return float(value)
    found = _NUMBER.match(str(value))
    return float(found[0].replace(",", "")) if found else None


def png(image: Tensor) -> bytes:
    """Encode an image (C, H, W) in [0, 1], C 1 or 3; values that are not finite become black.

    Raises:
        IncompatibleError: another shape.
    """
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise IncompatibleError(
            f"An image of shape {tuple(image.shape)} cannot be shown; needed: (1, H, W) or "
            "(3, H, W)."
        )
    values = image.detach().float().cpu().nan_to_num(0.0).clamp(0, 1)
    pixels = (values * 255).round().byte().permute(1, 2, 0).numpy()
    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if image.shape[0] == 1 else pixels).save(out, "PNG")
    return out.getvalue()


def fill_template(template: str, **values: object) -> str:
    """Return a template of a whole page, filled in; text is escaped, pieces are not."""
    return _TEMPLATES.get_template(template).render(**values)


def link_sections(sections: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Sections with content: (id, title, body), no two ids alike."""
    out: dict[str, tuple[str, str, str]] = {}
    for title, body in sections:
        base = _LINK_CHARACTERS.sub("-", title.lower()).strip("-") or "part"
        name, number = base, 2
        while name in out:
            name, number = f"{base}-{number}", number + 1
        if body.strip():
            out[name] = (name, title, body)
    return list(out.values())


_TEMPLATES.filters["linked"] = link_sections
_TEMPLATES.globals["table"] = table


def fragment(rows: Sequence[Mapping[str, object]], *, title: str, foot: str = "") -> Html:
    """Return a small table for a notebook, which brings its own style."""
    heads = list(rows[0]) if rows else []
    cells = [[_display_value(row.get(key)) for key in heads] for row in rows]
    return pieces.fragment(heads, cells, title, foot)
