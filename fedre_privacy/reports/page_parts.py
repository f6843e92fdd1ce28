"""What pages share: names of files, words, figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedre_privacy.core import files
from fedre_privacy.core.typed_yaml import MOST_TEXT
from fedre_privacy.protocols.base import protocols

from .html import Html, pieces

NAME = "report.html"

SHOWN_TARGETS = 60
"""Targets whose pictures are on the page; the table has all."""

FIGURES = {
    "frontier": "Accuracy against communication and against leakage; a ring marks the Pareto set.",
    "comparison": "Every variant with its accuracy, communication and kinds of leakage.",
    "defences": "Every defence under attackers that know it and that do not, and what it costs.",
    "matrix": "Which attack reads which upload, and how far above its floor it comes.",
    "rounds-attacked": "Leakage over the floor against the attacked round.",
    "rounds-read": "Leakage over the floor against the number of rounds that the attack reads.",
    "figure": "What the attack recovered, beside the truth and the floor.",
    "trace": "The attack's own objective along the way.",
    "epsilon": "Epsilon: 0 gives nothing away. The truth lies at what was shown or above.",
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


def protocol_name(name: str) -> str:
    """A protocol as papers write it (``FedGH``); another system as it is called."""
    return protocols.get(name).__name__ if name in protocols.names() else name


def title_of_attack(attack: str, target: str, protocol: str) -> str:
    """What an attack is, in words: ``dip on prototypes, FedGH``."""
    on = "" if target == attack else f" on {target.replace('-', ' ')}"
    return f"{attack}{on}, {protocol_name(protocol)}"


def title_of_audit(level: str, protocol: str) -> str:
    """What an audit is, in words: ``audit of the mechanism, FedAvg``."""
    return f"audit of the {level}, {protocol_name(protocol)}"


def title_of_membership(attack: str, protocol: str) -> str:
    """What attacks on membership are, in words: ``membership by span, FedAvg``."""
    return f"membership by {attack}, {protocol_name(protocol)}"


@dataclass(frozen=True)
class PageFigure:
    """A figure of a page.

    Args:
        name: of its files.
        kind: ``svg+xml``, which follows the colour scheme, or ``png``.
        wide: whether half the page would be too small for it.
    """

    name: str
    caption: str
    kind: str
    data: bytes
    wide: bool


def figures(folder: Path) -> list[PageFigure]:
    """Every figure of a folder, in the order of `FIGURES`; as SVG where there is one."""
    known = dict(zip(FIGURES, range(len(FIGURES)), strict=True))
    found = sorted(folder.glob("*.png"), key=lambda p: (known.get(p.stem, len(known)), p.name))
    return [_figure(path, path.read_bytes()) for path in found if path.stat().st_size]


def _figure(path: Path, png: bytes) -> PageFigure:
    drawn = path.with_suffix(".svg")
    kind, _, rest = path.stem.partition("-")
    caption = FIGURES.get(path.stem) or (
        f"{FIGURES[kind]} By {rest}." if kind in FIGURES else path.stem
    )
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))  # of its header
    wide = width > 1.8 * height
    if drawn.is_file():
        data = files.read_text(drawn, MOST_TEXT).encode("utf-8")
        return PageFigure(path.stem, caption, "svg+xml", data, wide)
    return PageFigure(path.stem, caption, "png", png, wide)


def versions(record: Mapping[str, Any]) -> str:
    """A record's versions in one line."""
    return ", ".join(f"{name} {number}" for name, number in record["versions"].items())


def absent(value: object) -> bool:
    """Whether a cell of a table holds nothing."""
    return value is None or (isinstance(value, float) and value != value)


def settings_of(values: Mapping[str, Any], label: str) -> Html:
    """Settings as they stand in a settings file, folded away."""
    body = yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=False)
    return pieces.details(label, pieces.preformatted(body, label=label))
