"""The process that an attack runs in. It is started before anything of a run is named to it.

``python -P -m fedre_privacy.sandbox.worker FD`` imports torch and the attacks, waits at its end of
a line for an order, runs that one attack, answers, and is ended.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context, attacks
from fedre_privacy.core.config import build
from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.events import Event

from . import bubblewrap as sandbox
from .attack_description import describe
from .channel import Head, Line
from .observation_files import unpack


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
    line.send({"is": "ready"})
    order = line.receive()
    if order is None:
        return
    head, _ = order
    try:
        (_describe if "describe" in head else _run_attack)(head, line)
    except BaseException as error:  # an attack may fail in any way; the other side says so
        told = {"type": type(error).__name__, "traceback": traceback.format_exc()}
        if not isinstance(error, FedreError):
            line.send({"is": "failed", "text": str(error), **told})
            return
        if not error.__cause__:
            told["traceback"] = ""
        problems, step = list(error.problems), error.next_step
        line.send({"is": "refused", "problems": problems, "next_step": step, **told})


def _describe(head: Head, line: Line) -> None:
    sys.path.insert(0, str(Path(head["folder"]) / "modules"))
    line.send({"is": "described", "told": describe(*head["describe"])})


def _run_attack(head: Head, line: Line) -> None:
    folder = Path(head["folder"])
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
    line.send({"is": "done", "texts": texts}, tensors)
    line.receive()  # its memory is measured from outside before it may go


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


def _watch(parent: int) -> None:
    """End when the evaluator is gone; a sandbox ends without this."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def main() -> None:
    """Import what every attack needs, and run one."""
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    sys.argv = sys.argv[:1]
    sandbox.leave_keyring()
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    attacks.names()  # imports them all, those of installed packages too
    try:
        attend(Line(end))
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
