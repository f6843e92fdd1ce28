"""The page of many results, as one HTML file or as a folder with the pictures beside it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from fedre_privacy.core import files
from fedre_privacy.core.os_errors import file_write_errors
from fedre_privacy.core.safe_text import visible
from fedre_privacy.core.units import plural
from fedre_privacy.reports.html import Html, fill_template
from fedre_privacy.reports.page_parts import NAME
from fedre_privacy.reports.verdict_icons import ICONS, look_of

from .entries import DAMAGED, ResultEntry, Sheets, Targets
from .reader import collect
from .titles import title_of

MOST_INSIDE = 64 << 20
"""Bytes of pictures above which a folder is made and no single file, unless told where to write."""

PAGE, FOLDER, INDEX, PICTURES = "view.html", "view", "index.html", "pictures"
_OURS = re.compile(r"[0-9a-f]{32}\.png")


@dataclass(frozen=True)
class ViewerPage:
    """A page of many results.

    Args:
        truth: whether it holds what is private.
    """

    path: Path
    entries: tuple[ResultEntry, ...]
    truth: bool

    def counts(self) -> dict[str, int]:
        """How many results of each kind, and how many of all are damaged."""
        kinds = [entry.kind for entry in self.entries]
        out = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
        bad = sum(entry.status == DAMAGED for entry in self.entries)
        return out | ({DAMAGED: bad} if bad else {})


def view(
    folder: str | Path = "runs", out: str | Path | None = None, *, truth: bool = True
) -> ViewerPage:
    """Write one page that shows every run, attack, audit and benchmark below a folder.

    It needs no server and no network. Calling again shows what has come since.

    Args:
        out: an HTML file, or a folder for the page with its pictures beside it; None:
            ``view.html`` in `folder`, or the folder ``view`` there where pictures are many.
        truth: include what is private: images that answers were scored against, members, counts of
            classes. Without it the page can be shared as far as what was recovered can.

    Raises:
        MissingInputError: no such folder, or nothing in it is a result.
        StorageError: the page cannot be written.
    """
    root = Path(folder)
    entries = collect(root, truth=truth)
    given = Path(out) if out is not None else _usual(root, entries)
    with files.private() if truth else nullcontext():
        path = write_page(entries, root, given, truth=truth)
    return ViewerPage(path, tuple(entries), truth)


def write_page(entries: Sequence[ResultEntry], root: Path, given: Path, *, truth: bool) -> Path:
    """Write the page of results that were read; see `view`.

    Returns:
        The HTML file.
    """
    single = given.suffix.lower() in (".html", ".htm")
    path = given if single else given / INDEX
    pictures: dict[str, bytes] = {}
    blocks = _blocks(entries, pictures, root, path, inside=single, truth=truth)
    if not single:
        _write_pictures(given / PICTURES, pictures)
    text = fill_template(
        "viewer.html", title=_title(root), told=_entry_notes(entries), truth=truth, blocks=blocks,
        pictures=list(pictures.items()) if single else [],
    )  # fmt: skip
    files.write_text(path, text)
    return path


def _usual(root: Path, entries: Sequence[ResultEntry]) -> Path:
    every = [
        sheets
        for entry in entries
        if entry.targets is not None
        for sheets in entry.targets.pictures.values()
    ]
    size = sum(len(png) for sheets in every for png in sheets.pngs)
    return root / (PAGE if size <= MOST_INSIDE else FOLDER)


def _title(root: Path) -> str:
    return f"Results in {root.resolve().name}"


def _entry_notes(entries: Sequence[ResultEntry]) -> str:
    kinds = [entry.kind for entry in entries]
    nouns = {"membership": "membership game"}
    return ", ".join(
        plural(kinds.count(kind), nouns.get(kind, kind)) for kind in dict.fromkeys(kinds)
    )


def _write_pictures(folder: Path, pictures: Mapping[str, bytes]) -> None:
    """Write sheets, and remove those of an earlier page, which may hold what this one must not."""
    names = {f"{name}.png" for name in pictures}
    if folder.is_dir():
        with file_write_errors(folder):
            for path in folder.iterdir():
                if _OURS.fullmatch(path.name) and path.name not in names:
                    path.unlink()
    for name, data in pictures.items():
        files.write_bytes(folder / f"{name}.png", data)


def _blocks(
    entries: Sequence[ResultEntry],
    pictures: dict[str, bytes],
    root: Path,
    path: Path,
    *,
    inside: bool,
    truth: bool,
) -> list[tuple[str, Html]]:
    """The data of the page, as (id, JSON): the list first, then each result by itself.

    Args:
        inside: whether sheets lie in the page.
    """
    ids = {entry.path: hashlib.sha256(entry.path.encode()).hexdigest()[:12] for entry in entries}
    numbers: dict[str, int] = {}
    listed, single = [], []
    for entry in entries:
        told = {**_list_row(entry), "id": ids[entry.path], "parent": ids.get(entry.parent)}
        listed.append(told)
        more = {
            "because": entry.because,
            "flags": dict(entry.flags),
            "facts": dict(entry.facts),
            "tables": [table.plain() for table in entry.tables],
            "settings": yaml.safe_dump(dict(entry.settings), sort_keys=False)
            if entry.settings
            else "",
            "parent": told["parent"],
            "report": _report(root, entry, path) if truth else None,
            "targets": None
            if entry.targets is None
            else _targets(entry.targets, numbers, pictures, inside=inside),
            "panels": [asdict(panel) for panel in entry.panels],
        }
        single.append((f"e{ids[entry.path]}", _json(more)))
    index = {"title": _title(root), "truth": truth, "icons": ICONS, "entries": listed}
    return [("index", _json(index)), *single]


def _list_row(entry: ResultEntry) -> dict[str, Any]:
    """What the list shows of a result."""
    scored = entry.targets is not None and bool(entry.targets.scores) and bool(entry.targets.keys)
    return {
        "kind": entry.kind, "path": entry.path, "name": entry.name, "status": entry.status,
        "problem": entry.problem, "facets": dict(entry.facets), "seed": entry.seed,
        "started": entry.started, "score": None if entry.score is None else asdict(entry.score),
        "n": entry.n, "accuracy": entry.accuracy, "pairs": scored,
        "title": title_of(entry),
        "look": look_of(entry.facets.get("verdict", "")), "bars": [asdict(b) for b in entry.bars],
        "thumbnail": None if entry.thumbnail is None else b64encode(entry.thumbnail).decode(),
    }  # fmt: skip


def _report(root: Path, entry: ResultEntry, path: Path) -> str | None:
    """The page that the result has of its own, as seen from this one."""
    at_root = not (root / entry.path).is_dir() and entry.path == root.resolve().name
    page = (root if at_root else root / entry.path) / NAME
    if not page.is_file():
        return None
    return quote(Path(os.path.relpath(page.resolve(), path.resolve().parent)).as_posix())


def _targets(
    targets: Targets, numbers: dict[str, int], pictures: dict[str, bytes], *, inside: bool
) -> dict[str, Any]:
    """Targets, with numbers in place of what names the truth."""
    return {
        "count": max((len(values) for values in targets.columns.values()), default=0),
        "columns": {name: list(values) for name, values in targets.columns.items()},
        "scores": {name: list(told) for name, told in targets.scores.items()},
        "doubts": list(targets.doubts),
        "keys": [numbers.setdefault(f"key {key}", len(numbers)) for key in targets.keys],
        "clusters": [numbers.setdefault(f"client {one}", len(numbers)) for one in targets.clusters],
        "pictures": {
            name: _sheets(sheets, pictures, inside=inside)
            for name, sheets in targets.pictures.items()
        },
    }


def _sheets(sheets: Sheets, pictures: dict[str, bytes], *, inside: bool) -> dict[str, Any]:
    """Where pictures lie; sheets with the same content are kept once."""
    names = [hashlib.sha256(png).hexdigest()[:32] for png in sheets.pngs]
    pictures.update(zip(names, sheets.pngs, strict=True))
    return {
        "width": sheets.width, "height": sheets.height, "across": sheets.across,
        "each": sheets.each, "which": sheets.which,
        "from": [f"#{name}" if inside else f"{PICTURES}/{name}.png" for name in names],
    }  # fmt: skip


def _json(value: Mapping[str, Any]) -> Html:
    """JSON that ends no script element, whatever texts it holds."""
    text = json.dumps(_visible_values(value), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def _visible_values(value: Any) -> Any:
    """The same with texts in which nothing is hidden (`visible`)."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(key)): _visible_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_visible_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else str(value)
