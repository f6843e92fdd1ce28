"""What a person, a script or nobody sees of the events."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from fedre_privacy.core.errors import FedreError, Interrupted
from fedre_privacy.core.events import Event

WIDTH = 11


class Output:
    """Prints events in one of three ways: for people, as JSON, or not at all."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._steps: dict[int, int] = {}

    def __call__(self, event: Event) -> None:
        """Receive an event from the pipeline."""
        if self.as_json:
            self.json(event.name, event.data)
        elif not self.quiet:
            self._show(event)

    def json(self, name: str, data: dict[str, Any]) -> None:
        """Print one JSON object."""
        print(json.dumps({"event": name, **data}, default=_plain), flush=True)

    def line(self, heading: str, text: str) -> None:
        """Print a headed line for people."""
        if not self.as_json and not self.quiet:
            self.stop()
            print(f"{heading:<{WIDTH}}{text}", flush=True)

    def text(self, text: str = "") -> None:
        """Print text for people."""
        if not self.as_json and not self.quiet:
            self.stop()
            print(text, flush=True)

    def final(self, path: Path, data: dict[str, Any]) -> None:
        """Print what a script waits for: the path, or the last JSON object."""
        self.stop()
        if self.quiet:
            print(path)
        elif self.as_json:
            self.json("result", {"folder": str(path), **data})

    def stop(self) -> None:
        """Take the progress bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._tasks, self._steps = None, {}, {}

    def _show(self, event: Event) -> None:
        data = event.data
        if event.name == "train.round":
            note = f"loss {data['loss']:.3f}"
            if data["accuracy"] is not None:
                note += f"  accuracy {data['accuracy']:.3f}"
            self._advance("train", data["round"], data["of"], note)
        elif event.name == "attack.step":
            self._steps[data["first"]] = (data["step"] + 1) * data["rows"]
            match = float(data["match"].nanmedian())
            self._advance(
                "attack",
                sum(self._steps.values()),
                data["of"] * data["total"],
                f"match {match:.1e}",
            )
        elif event.name == "attack.game":
            for heading, text in data["lines"].items():
                self.line(heading, text)
        elif event.name == "note":
            self.line("Note", data["text"])

    def _advance(self, name: str, done: int, total: int, note: str) -> None:
        if not sys.stdout.isatty():
            return
        if self._progress is None:
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
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return str(value)


def print_table(rows: Sequence[dict[str, str]], show: Callable[[str], None]) -> None:
    """Print rows of equal keys as aligned columns under their headings."""
    keys = list(rows[0])
    widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in keys}
    show("  " + "   ".join(f"{key:<{widths[key]}}" for key in keys).rstrip())
    for row in rows:
        show("  " + "   ".join(f"{row[key]:<{widths[key]}}" for key in keys).rstrip())


def guarded(body: Callable[[Output], int], output: Output, log: Callable[[], Path]) -> int:
    """Run a command; turn every way it can end into a message and an exit code.

    Args:
        log: where the traceback of an unexpected error is written.
    """
    try:
        return body(output)
    except FedreError as error:
        return _refused(error, output)
    except KeyboardInterrupt:
        stopped = Interrupted(
            "Interrupted. What was finished is kept.",
            next_step="Give the same command with --resume to go on.",
        )
        return _refused(stopped, output)
    except Exception as error:
        output.stop()
        path = log()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as handle:
            handle.write(traceback.format_exc())
        print(f"Unexpected error: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"This is a bug in fedre-privacy; the traceback is in {path}.", file=sys.stderr)
        return 1


def _refused(error: FedreError, output: Output) -> int:
    output.stop()
    if output.as_json:
        output.json(
            "error",
            {
                "type": type(error).__name__,
                "exit": error.exit_code,
                "problems": list(error.problems),
                "next": error.next_step,
            },
        )
    else:
        print(error, file=sys.stderr)
    return error.exit_code
