"""What a part's docstring and settings say, as Markdown."""

from __future__ import annotations

import html
import re

from fedre_privacy.cli.lists import display_default
from fedre_privacy.core.config import knobs

FACT = re.compile(r"^\s*([A-Z][a-z]+):\s+(?=\S)")


def cell(text: str) -> str:
    """A text as it may stand in a cell of a table."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def described(docstring: str) -> list[str]:
    """A part's docstring in Markdown: prose, then its facts (shape, needs, cost, source)."""
    lines: list[str] = []
    facts = False
    for line in html.escape(docstring, quote=False).splitlines():
        start = FACT.match(line)
        if start and (facts or not line.startswith(" ")):
            lines += ["", f"*{start[1]}*", f":   {line[start.end() :]}"]
            facts = True
        elif facts and line.startswith(" "):
            lines.append(f"    {line.strip()}")
        elif line.strip() in ("Args:", "Raises:"):
            break
        else:
            lines.append(line)
            facts = facts and bool(line)
    return lines


def settings_of(part: type) -> list[str]:
    """The settings of a part as a table."""
    rows = [
        f"| `{one.name}` | `{display_default(one.default)}` "
        f"| {cell(one.help)}{f' ({cell(one.bounds)})' if one.bounds else ''} |"
        for one in knobs(part)
    ]
    return ["| setting | default | what it does |", "|---|---|---|", *rows] if rows else []
