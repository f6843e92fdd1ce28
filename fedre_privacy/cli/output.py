"""What a person, a script or nobody sees of the events."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.cells import cell_len

from fedre_privacy.core.events import Event
from fedre_privacy.core.interrupts import check
from fedre_privacy.core.safe_text import visible

if TYPE_CHECKING:  # a help page moves no bar
    from rich.progress import Progress, TaskID

WIDTH = 11
"""Columns of a heading."""
MOST_BITS = 128
"""Longest whole number that is printed as one; Python writes none of thousands of digits."""
GAP, NARROW = 3, 2
"""Spaces between the columns of a table, and of one that does not fit otherwise."""


class Estimate(Protocol):
    """What a dry run found (`experiments.dry_run`)."""

    @property
    def lines(self) -> Mapping[str, str]: ...

    def table(self, trainings: int = 1) -> Sequence[Mapping[str, str]]: ...


class Output:
    """Prints events in one of three ways: for people, as JSON, or not at all.

    Events may come from several threads.
    """

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.reused: set[str] = set()
        """Events ``*.reused`` seen: what was found finished and not repeated."""
        self._lock = threading.RLock()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._steps: dict[int, int] = {}

    def __call__(self, event: Event) -> None:
        """Receive an event from the pipeline."""
        check()
        with self._lock:
            if event.name.endswith(".reused"):
                self.reused.add(event.name)
            if self.as_json:
                self._json(event.name, event.data)
            elif not self.quiet:
                self._show(event)

    def event(self, name: str, data: Mapping[str, Any]) -> None:
        """Print one JSON object, if JSON is wanted."""
        if self.as_json:
            self._json(name, data)

    def line(self, heading: str, text: str, *, wrap: bool = True) -> None:
        """Print a headed line for people.

        Args:
            wrap: break it at the width of a terminal; off for what will be copied.
        """
        width = terminal_width() if wrap else None
        if width is None:
            self.text(f"{heading:<{WIDTH - 1}} {text}".rstrip())
            return
        column = max(WIDTH, len(heading) + 1)
        indent = " " * column
        pieces = _wrap(visible(text), max(width - column, 30))
        self.text(f"{heading:<{WIDTH - 1}} " + f"\n{indent}".join(pieces))

    def text(self, text: str = "") -> None:
        """Print text for people."""
        if not self.as_json and not self.quiet:
            with self._lock:
                self.stop()
                print(visible(text), flush=True)

    def table(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Print rows of equal keys as aligned columns under their headings."""
        for text in table_lines(rows, terminal_width()):
            self.text(text)

    def estimate(self, estimate: Estimate, trainings: int = 1) -> None:
        """Print what a dry run found: what would be done, then a table of what it would take."""
        for heading, text in estimate.lines.items():
            self.line(heading, text)
        self.text()
        self.table(estimate.table(trainings))

    def final(self, path: Path | None, data: Mapping[str, Any]) -> None:
        """Print what a script waits for: the path, or the last JSON object."""
        self.stop()
        if self.quiet:
            if path is not None:
                print(path, flush=True)
        elif self.as_json:
            folder = {} if path is None else {"folder": str(path)}
            self._json("result", {**folder, **data})

    def stop(self) -> None:
        """Take the progress bar away."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()
                self._progress, self._tasks, self._steps = None, {}, {}

    def _json(self, name: str, data: Mapping[str, Any]) -> None:
        text = json.dumps({"event": name} | _plain(data) | {"event": name}, allow_nan=False)
        with self._lock:
            print(text, flush=True)

    def _show(self, event: Event) -> None:
        data = event.data
        if event.name == "train.round":
            note = f"loss {data['loss']:.3f}"
            if data["accuracy"] is not None:
                note += f"  accuracy {data['accuracy']:.3f}"
            self._advance("train", data["round"], data["of"], note)
        elif event.name == "features.computed":
            self._advance("features", data["done"], data["of"], "of the backbone, once")
        elif event.name == "attack.step":
            self._steps[data["first"]] = (data["step"] + 1) * data["rows"]
            match = float(data["match"].nanmedian())
            self._advance(
                "attack",
                sum(self._steps.values()),
                data["of"] * data["total"],
                f"match {match:.1e}",
            )
        elif event.name == "attack.scoring":
            if self._progress is not None and "attack" in self._tasks:
                (task,) = (t for t in self._progress.tasks if t.id == self._tasks["attack"])
                self._progress.update(
                    task.id, completed=task.total, description="scoring", note="", refresh=True
                )
        elif event.name == "attack.trial":
            for heading, text in data["lines"].items():
                self.line(heading, text)
        elif event.name == "attack.usual":
            self.line("Attack", data["text"])
        elif event.name == "note":
            self.line("Note", data["text"])

    def _advance(self, name: str, done: int, total: int, note: str) -> None:
        if self._progress is None:
            if not sys.stdout.isatty():  # asked once: rich before 15 puts a stand-in there
                return
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
            from rich.progress import TimeRemainingColumn as Remaining

            self._progress = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(30),
                TextColumn("{task.percentage:>3.0f} %  {task.fields[note]}"),
                TimeElapsedColumn(),
                TextColumn("<"),
                Remaining(),
                console=Console(),
                transient=True,
            )
            self._progress.start()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, note=note)
        self._progress.update(self._tasks[name], completed=done, total=total, note=note)


def _plain(value: Any) -> Any:
    """Turn a value into what every JSON reader takes; a number that is not finite is null."""
    torch = sys.modules.get("torch")  # which is not imported to find out
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return hex(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def terminal_width() -> int | None:
    """Columns of the terminal that standard output goes to; None where it goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _wrap(text: str, width: int) -> list[str]:
    """Break at spaces, never inside a word, an interval or a value with its spread or unit."""
    glued = re.sub(r"\[[^\]]*\]| \+- | %", lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines] or [""]


def table_lines(rows: Sequence[Mapping[str, str]], width: int | None = None) -> list[str]:
    """Lay out rows of equal keys as aligned columns under their headings.

    Words, intervals and values with their units are never broken.

    Args:
        width: columns to stay within by breaking the widest cells; None for no limit.
    """
    if not rows:
        return []
    columns = [[visible(text) for text in (key, *(row[key] for row in rows))] for key in rows[0]]
    widths = [max(map(cell_len, column)) for column in columns]
    least = [max(cell_len(p) for text in column for p in _wrap(text, 1)) for column in columns]
    gap = GAP
    while width is not None and 2 + sum(widths) + gap * (len(columns) - 1) > width:
        wide = [at for at in range(len(columns)) if widths[at] > least[at]]
        if not wide:
            gap = NARROW
            break
        widths[max(wide, key=lambda at: widths[at])] -= 1
    lines = []
    for row in zip(*columns, strict=True):
        cells = [_wrap(text, max(size, 1)) for text, size in zip(row, widths, strict=True)]
        for pieces in zip_longest(*cells, fillvalue=""):
            padded = [p + " " * (w - cell_len(p)) for p, w in zip(pieces, widths, strict=True)]
            lines.append(f"  {(' ' * gap).join(padded)}".rstrip())
    return lines
