"""Report pages: one HTML file with its images, style and script inside, readable anywhere.

Functions return pieces of HTML (`Html`); text given to them is escaped, pieces are not. A page
asks for nothing from outside, works without its script (tables are then unsorted, images small),
and depends on its input alone, so the same record gives the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType

import numpy as np
from PIL import Image
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError

from .html_assets import SCRIPT, STYLE

Html = NewType("Html", str)
"""A finished piece of a page: text in it is escaped."""

WIDE = 44
"""Characters from which a cell may be broken into lines."""

_NUMBER = re.compile(r"[+-]?\d[\d,]*\.?\d*(?:[eE][+-]?\d+)?")
_WITHOUT_VALUE = ("", "-", "--")
_LINK_CHARACTERS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Link:
    """A cell that leads to a file beside the page.

    Args:
        text: what is shown.
        to: relative path with forward slashes.
    """

    text: str
    to: str


@dataclass(frozen=True)
class Target:
    """One attacked target with its pictures.

    Args:
        title: whose it is.
        shots: heading to PNG, side by side, the truth first.
        scores: metric to its value beside the floor, in words.
        note: what is odd about it, or empty.
    """

    title: str
    shots: Mapping[str, bytes]
    scores: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own; parts without content are left out."""

    title: str
    body: Html


def text(value: object) -> Html:
    """Escape a text."""
    return Html(html.escape(str(value)))


def join(*pieces: Html) -> Html:
    """Put pieces one after the other."""
    return Html("\n".join(piece for piece in pieces if piece))


def paragraph(words: str, *, soft: bool = False) -> Html:
    """Return a paragraph, `soft` for what matters less; nothing for no words."""
    if not words:
        return Html("")
    start = '<p class="soft">' if soft else "<p>"
    return Html(f"{start}{text(words)}</p>")


def heading(words: str) -> Html:
    """Return a heading within a section."""
    return Html(f"<h3>{text(words)}</h3>")


def bullets(items: Iterable[str]) -> Html:
    """Return a list; nothing for no items."""
    inside = "".join(f"<li>{text(item)}</li>" for item in items)
    return Html(f"<ul>{inside}</ul>" if inside else "")


def facts(pairs: Mapping[str, object]) -> Html:
    """Return names with what they are; nothing for no pairs."""
    inside = "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in pairs.items())
    return Html(f'<dl class="facts">{inside}</dl>' if inside else "")


def preformatted(words: str, *, label: str) -> Html:
    """Return text whose line breaks count, in a box that scrolls by itself."""
    return Html(f"{_box(label)}<pre>{text(words)}</pre></div>")


def verdict(words: str, because: str) -> Html:
    """Return the verdict with its reason."""
    return Html(f'<div class="verdict"><strong>{text(words)}</strong><br>{text(because)}</div>')


def flag(name: str, meaning: str) -> Html:
    """Return a warning that stands out, such as ORACLE."""
    return Html(f'<div class="flag"><strong>{text(name)}</strong>: {text(meaning)}</div>')


def details(summary: str, body: Html, *, shown: bool = False) -> Html:
    """Return a part that opens on demand; nothing for an empty one."""
    if not body:
        return Html("")
    start = "<details open>" if shown else "<details>"
    return Html(f"{start}<summary>{text(summary)}</summary>\n{body}\n</details>")


def table(rows: Sequence[Mapping[str, object]], *, label: str, tall: bool = False) -> Html:
    """Return a table that is sorted by a click on a heading, and scrolls in a box of its own.

    Args:
        rows: heading to cell: text, number, bool, None (an empty cell) or `Link`; headings are
            those of the first row.
        label: what it shows, for readers that hear the page.
        tall: limit its height on the screen.
    """
    if not rows:
        return Html("")
    numbers = {key: _all_numbers([row.get(key) for row in rows]) for key in rows[0]}
    heads = "".join(_head(key, right) for key, right in numbers.items())
    lines = (
        f"<tr>{''.join(_cell(row.get(key), right) for key, right in numbers.items())}</tr>"
        for row in rows
    )
    body = "\n".join(lines)
    return Html(
        f'{_box(label, tall=tall)}<table class="sortable">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _box(label: str, *, tall: bool = False) -> str:
    """Open a box that scrolls by itself, with the keyboard too."""
    kind = "box tall" if tall else "box"
    return f'<div class="{kind}" role="region" tabindex="0" aria-label="{text(label)}">'


def _all_numbers(values: Sequence[object]) -> bool:
    """Whether every cell of a column that holds a value holds a number."""
    numbers = [
        isinstance(value, Link) is False and _number(value) is not None and len(shown) <= WIDE
        for value in values
        if (shown := _shown(value)) not in _WITHOUT_VALUE
    ]
    return bool(numbers) and all(numbers)


def _head(key: str, right: bool) -> str:
    """A heading, on the side of its column's numbers."""
    kind = ' class="number"' if right else ""
    return f'<th scope="col"{kind}>{text(key)}</th>'


def _cell(value: object, right: bool) -> str:
    if isinstance(value, Link):
        return f'<td><a href="{text(value.to)}">{text(value.text)}</a></td>'
    shown, number = _shown(value), _number(value)
    if shown in _WITHOUT_VALUE:
        kind = ' class="number"' if right else ""
        return f'<td{kind} data-value="">{text(shown)}</td>'
    if number is not None:
        kind = "number" if len(shown) <= WIDE else "words"
        return f'<td class="{kind}" data-value="{number:.10g}">{text(shown)}</td>'
    start = '<td class="words">' if len(shown) > WIDE else "<td>"
    return f"{start}{text(shown)}</td>"


def _shown(value: object) -> str:
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


def picture(data: bytes, *, alt: str, pixels: bool = False) -> Html:
    """Return an image that is enlarged by a click; `pixels` shows its pixels as squares."""
    source = base64.b64encode(data).decode("ascii")
    kind = "enlarge pixels" if pixels else "enlarge"
    return Html(f'<img class="{kind}" alt="{text(alt)}" src="data:image/png;base64,{source}">')


def figure(data: bytes, *, alt: str, caption: str = "") -> Html:
    """Return a figure from its PNG; nothing for an empty one."""
    if not data:
        return Html("")
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return Html(f"<figure>{picture(data, alt=alt)}{below}</figure>")


def gallery(targets: Iterable[Target]) -> Html:
    """Return the pictures and scores of single targets; nothing for none."""
    cards = []
    for target in targets:
        shots = "".join(
            f"<div>{picture(data, alt=f'{name}, {target.title}', pixels=True)}{text(name)}</div>"
            for name, data in target.shots.items()
        )
        scores = "<br>".join(f"{text(k)}: {text(v)}" for k, v in target.scores.items())
        cards.append(
            f'<article class="target"><h3>{text(target.title)}</h3>'
            f'<div class="shots">{shots}</div><p>{scores}</p>{paragraph(target.note, soft=True)}'
            "</article>"
        )
    return Html(f'<div class="targets">{"".join(cards)}</div>' if cards else "")


def page(title: str, lead: Html, sections: Sequence[Section]) -> str:
    """Return a whole page.

    Args:
        title: of the page and its window.
        lead: what stands before the first section.
        sections: in order; each is reachable from the list at the head.
    """
    kept = [section for section in sections if section.body]
    ids = _ids([section.title for section in kept])
    links = "".join(f'<a href="#{i}">{text(s.title)}</a>' for i, s in zip(ids, kept, strict=True))
    body = "\n".join(
        f'<section aria-labelledby="{i}"><h2 id="{i}">{text(s.title)}</h2>\n{s.body}\n</section>'
        for i, s in zip(ids, kept, strict=True)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{text(title)}</h1>\n{lead}\n<nav aria-label="Sections">{links}</nav>'
        f"</header>\n<main>\n{body}\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _ids(titles: Sequence[str]) -> list[str]:
    """An id for each title, no two alike."""
    out: list[str] = []
    for title in titles:
        base = _LINK_CHARACTERS.sub("-", title.lower()).strip("-") or "part"
        name, number = base, 2
        while name in out:
            name, number = f"{base}-{number}", number + 1
        out.append(name)
    return out


def fragment(rows: Sequence[Mapping[str, object]], *, title: str, foot: str = "") -> Html:
    """Return a small table for a notebook, which brings its own style."""
    heads = "".join(f"<th>{text(key)}</th>" for key in rows[0]) if rows else ""
    lines = "".join(
        f"<tr>{''.join(f'<td>{text(_shown(row.get(k)))}</td>' for k in rows[0])}</tr>"
        for row in rows
    )
    inside = f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>" if rows else ""
    return Html(f"<div><strong>{text(title)}</strong>{inside}{paragraph(foot)}</div>")
