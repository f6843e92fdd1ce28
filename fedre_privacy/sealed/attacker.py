"""The process that attacks run in. It is started before anything of a run is named to it.

``python -P -m fedre_privacy.sealed.attacker FD`` waits on a socket for ends of lines, and for each
of them makes a copy of itself, which raises its walls, runs one attack and ends. Python and torch
are so loaded once for many attacks.
"""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context, attacks
from fedre_privacy.core.config import build
from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.events import Event

from . import walls
from .line import Head, Line
from .packing import unpack

WROTE = "output.txt"
"""What an attack printed, in its folder."""


class RemoteCache:
    """Finished pieces, kept on the other side of the line."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def load(self, name: str) -> dict[str, Tensor] | None:
        head, tensors = self._line.ask({"is": "load", "name": name})
        return tensors if head["found"] else None

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        self._line.send({"is": "save", "name": name}, tensors)


def attend(line: Line) -> None:
    """Run one attack and send what came of it."""
    order = line.receive()
    if order is None:
        return
    head, _ = order
    line.send({"is": "started", "pid": os.getpid()})
    try:
        _run(head, line)
    except FedreError as error:
        line.send(
            {
                "is": "refused",
                "type": type(error).__name__,
                "problems": list(error.problems),
                "next_step": error.next_step,
                "traceback": traceback.format_exc() if error.__cause__ else None,
            }
        )
    except BaseException as error:  # an attack may fail in any way; the other side says so
        line.send(
            {
                "is": "failed",
                "type": type(error).__name__,
                "text": str(error),
                "traceback": traceback.format_exc(),
            }
        )


def _run(head: Head, line: Line) -> None:
    folder = Path(head["folder"])
    _settle(folder)
    ours = f"{__package__.partition('.')[0]}."
    for name in head["imports"]:
        if name.startswith(ours):  # ours may need packages that it could not find behind walls
            importlib.import_module(name)
    if head["walls"]:
        walls.raise_walls([*head["read"], *walls.FACTS], [str(folder)])
    torch.set_num_threads(head["threads"])
    sys.path.insert(0, str(folder / "modules"))
    for name in head["imports"]:
        importlib.import_module(name)
    attack = _attack(head["attack"])

    def report(event: Event) -> None:
        numbers = {k: v for k, v in event.data.items() if isinstance(v, Tensor)}
        plain = {k: v for k, v in event.data.items() if k not in numbers}
        line.send({"is": "event", "name": event.name, "data": plain}, numbers)

    context = Context(head["seed"], torch.device("cpu"), report, RemoteCache(line))
    outcome = attack(unpack(folder), context)
    tensors, texts = outcome.save()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line.send(
        {
            "is": "done",
            "texts": texts,
            "peak_bytes": peak * (1 if sys.platform == "darwin" else 1024),
        },
        tensors,
    )


def _attack(order: dict[str, Any]) -> Attack:
    found: Any = importlib.import_module(order["module"])
    for part in order["class"].split("."):
        found = getattr(found, part)
    if not vars(found).get("name"):  # its own, as `config.build_plugin` names it
        found.name = order["name"]
    problems: list[str] = []
    made: Attack | None = build(found, order["settings"], at="attack", problems=problems)
    if made is None:
        raise ValueError(" ".join(problems))
    return made


def _settle(folder: Path) -> None:
    """Live in the folder, and write there what would be printed."""
    os.umask(0o077)
    os.chdir(folder)
    (folder / "tmp").mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    written = os.open(WROTE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(written, number)
    os.close(written)


def main() -> None:
    """Make one copy of this process for each end of a line that comes in."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.argv = sys.argv[:1]
    attacks.names()  # imports them all, those of installed packages too
    folders: dict[int, str] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _forget(folders))
    Line(control).send({"path": sys.path, "prefixes": [sys.prefix, sys.base_prefix]})
    while True:
        told, ends, _, _ = socket.recv_fds(control, 4096, 1)
        _forget(folders)
        if not told:
            _end(folders)
            return
        copy = os.fork()
        if copy == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            try:
                attend(Line(socket.socket(fileno=ends[0])))
            finally:
                sys.stdout.flush()
                os._exit(0)
        folders[copy] = os.fsdecode(told)
        os.close(ends[0])


def _forget(folders: dict[int, str]) -> None:
    """Strike out the copies that have ended."""
    for copy in list(folders):
        with suppress(ChildProcessError):  # a signal struck it out between two lines of this
            if not os.waitpid(copy, os.WNOHANG)[0]:
                continue
        folders.pop(copy, None)


def _end(folders: dict[int, str]) -> None:
    """The evaluator is gone: end what is still running and remove what it was given."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for copy, folder in folders.items():
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
