"""What the pages of attacks and benchmarks share: names of files, words, figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from . import html
from .html import Html, pieces

NAME = "report.html"

SHOWN_TARGETS = 60
"""Targets whose pictures are on the page; the table has all."""

FIGURES = {
    "frontier": "Accuracy against communication and against leakage; a ring marks the Pareto set.",
    "comparison": "Every variant with its accuracy, communication and kinds of leakage.",
    "matrix": "Which attack reads which upload, and how far above its floor it comes.",
    "rounds-attacked": "Leakage over the floor against the attacked round.",
    "rounds-read": "Leakage over the floor against the number of rounds that the attack reads.",
    "figure": "What the attack recovered, beside the truth and the floor.",
    "trace": "The attack's own objective along the way.",
    "epsilon": "What an audit has shown at least, what is promised at most.",
    "roc": "True against false positives on logarithmic axes, with chance.",
    "exposed": "Records whose membership was told in most worlds.",
}
"""Captions of figures by file name, in the order in which they stand on the page."""

DEFINITIONS = {
    "floor": "the best answer that needs no upload, scored by the same rule on the same targets",
    "over floor": "paired difference to the floor; in brackets its 95 % interval over clients, "
    "each interval by itself",
    "ceiling": "the same attack on single representations, which mix nothing",
}
"""What stands in tables, in words; each measure brings its own definition."""


def figures(folder: Path) -> Html:
    """Every PNG of a folder, in the order of `FIGURES`."""
    known = dict(zip(FIGURES, range(len(FIGURES)), strict=True))
    found = sorted(folder.glob("*.png"), key=lambda p: (known.get(p.stem, len(known)), p.name))
    captions = {path: FIGURES.get(path.stem, path.stem) for path in found}
    return html.join(*(pieces.figure(p.read_bytes(), p.stem, c) for p, c in captions.items()))


def versions(record: Mapping[str, Any]) -> str:
    """A record's versions in one line."""
    return ", ".join(f"{name} {number}" for name, number in record["versions"].items())


def absent(value: object) -> bool:
    """Whether a cell of a table holds nothing."""
    return value is None or (isinstance(value, float) and value != value)


def settings_of(values: Mapping[str, Any], label: str) -> Html:
    """Settings as they stand in a settings file."""
    body = yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=False)
    return pieces.preformatted(body, label=label)
