"""From the evaluator's side: hand a sealed observation over, and take back what was answered.

The attack gets a folder of its own with the packed observation and one line. Over the line it
reports how far it is, keeps finished pieces and asks for them again, and answers. Nothing else
leaves or enters: not the run, not the data, not a path, not a seed that made them.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context, accepted
from fedre_privacy.core import errors
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.blame import is_plugin
from fedre_privacy.core.config import plain
from fedre_privacy.core.errors import ConfigError, DamagedInputError, IncompatibleError
from fedre_privacy.core.events import Event, only_an_attacks
from fedre_privacy.core.outcomes import Outcome
from fedre_privacy.core.text import visible
from fedre_privacy.core.types import Observation

from . import walls
from .attacker import WROTE
from .ends import failure, refusal
from .line import BrokenLine, Frame, Line
from .modules import Modules, frozen_copies
from .packing import pack, unpack

AUTO, STRICT, PROCESS, SAME = "auto", "strict", "process", "same-process"
ISOLATION = (AUTO, STRICT, PROCESS, SAME)
"""How far an attack is kept from the run: in a process of its own with walls (`strict`), without
(`process`), or in this process (`same-process`); `auto` is the strictest that works here."""

KEPT_VARIABLES = re.compile(
    r"(PATH|PYTHONPATH|PYTHONHASHSEED|LANG|LC_\w+|TZ|LD_LIBRARY_PATH|(OMP|MKL|KMP|OPENBLAS|GOMP)_\w+)"
)
"""Environment variables that an attack's process is given."""

PIECE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names under which an attack may keep a piece."""

OWN_MODULES_MOST = 1000
"""Modules that a plugin of one's own may consist of."""


@dataclass(frozen=True, eq=False)
class SealedResult:
    """What came of an attack.

    Args:
        how: where it ran: ``strict``, ``process`` or ``same-process``.
        peak_bytes: most memory that its process held; 0 where it had none of its own.
    """

    outcome: Outcome
    how: str
    peak_bytes: int = 0


def chosen(isolation: str, device: torch.device) -> str:
    """Where an attack will run.

    Raises:
        ConfigError: the name is unknown, or this system or device cannot do what is asked.
    """
    if isolation not in ISOLATION:
        raise ConfigError(errors.unknown("isolation", isolation, ISOLATION))
    if device.type != "cpu":
        if isolation in (STRICT, PROCESS):
            raise ConfigError(
                f"--isolation {isolation} runs an attack in a process of its own, which cannot "
                f"share {device}.",
                next_step="Use --device cpu, or leave --isolation out.",
            )
        return SAME
    if isolation == STRICT and not walls.version():
        raise ConfigError(
            "--isolation strict needs Landlock (Linux 5.13 or newer), which is not offered here.",
            next_step="Use --isolation process; docs/threat_models.md says what that leaves open.",
        )
    if isolation == AUTO:
        return STRICT if walls.version() else PROCESS if hasattr(os, "fork") else SAME
    return isolation


def play(
    attack: Attack,
    observation: Observation,
    context: Context,
    *,
    outcome: type[Outcome],
    isolation: str = AUTO,
    hidden: Sequence[Path] = (),
) -> SealedResult:
    """Run an attack on a sealed copy of an observation.

    Args:
        observation: its modules are `modules.Modules`, so that they can be built anew in another
            process. Modules that are given as objects stay in this one: the attack gets copies.
        context: its cache and listener stay on this side.
        outcome: what the attack is to return.
        isolation: see `ISOLATION`.
        hidden: files and folders that the attack must not be able to open.

    Raises:
        FedreError: as the attack refuses, or what it returned is not what was promised.
        Exception: what a built-in attack raised, by its built-in type.
    """
    how = chosen(isolation, context.device)
    context = dataclasses.replace(context, report=only_an_attacks(context.report))
    held = (observation.extractors, observation.models, observation.initial, observation.heads)
    objects = any(some and not isinstance(some, Modules) for some in held)
    if objects and isolation in (STRICT, PROCESS):
        raise ConfigError(
            f"Isolation '{isolation}' runs an attack in a process of its own, to which a module "
            "that is given as an object cannot be handed.",
            next_step="Leave isolation out. To keep walls, record the uploads and name a function "
            "that makes the module: fedre-attack --uploads (docs/artifact_format.md).",
        )
    with _folder() as folder:
        if objects:
            none = Modules({})
            bare = dataclasses.replace(
                observation, extractors=none, models=none, initial=none, heads=none
            )
            pack(bare, folder)
            extractors, models, initial, heads = map(frozen_copies, held)
            sealed = dataclasses.replace(
                unpack(folder), extractors=extractors, models=models, initial=initial, heads=heads
            )
            answer = accepted(attack, observation, attack(sealed, context), outcome)
            return SealedResult(answer, SAME)
        pack(observation, folder)
        if how == SAME:
            answer = attack(unpack(folder), context)
            return SealedResult(accepted(attack, observation, answer, outcome), how)
        frame = _order(attack, observation, context, folder)
        if how == STRICT:
            frame |= {"walls": True, "read": [str(p) for p in _readable(hidden)]}
        answer, peak = _played(frame, context, folder, outcome)
    return SealedResult(accepted(attack, observation, answer, outcome), how, peak)


def warm() -> None:
    """Start the process that attacks are run by, so that it is ready when one comes."""
    if hasattr(os, "fork"):
        _Attendant.get()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fedre-attack-") as made:
        yield Path(made).resolve()


def _order(
    attack: Attack, observation: Observation, context: Context, folder: Path
) -> dict[str, Any]:
    """What the other side is told, beside the observation."""
    kind = type(attack)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        raise ConfigError(
            f"Attack '{attack.name}' is defined inside a function, a script or a notebook, where "
            "another process cannot import it.",
            next_step="Put the class into a module of its own and name it module:Class, or allow "
            "it to run beside the truth with --isolation same-process.",
        )
    named = {kind.__module__}
    carried = [upload.artifacts for upload in (*observation.targets, *observation.uploads)]
    carried += [broadcast.artifacts for broadcast in observation.broadcasts]
    named |= {type(artifact).__module__ for artifacts in carried for artifact in artifacts}
    if observation.rehearse is not None:
        named |= observation.rehearse.modules()
    for modules in (
        observation.extractors, observation.models, observation.initial, observation.heads
    ):  # fmt: skip
        held = getattr(modules, "held", {})
        named |= {module for one in held.values() for module in one.recipe.modules()}
    imports = sorted(named - {Artifact.__module__})
    _copy_own(imports, folder / "modules")
    return {
        "folder": str(folder),
        "walls": False,
        "read": [],
        "threads": torch.get_num_threads(),
        "imports": imports,
        "seed": context.seed,
        "attack": {
            "module": kind.__module__,
            "class": kind.__qualname__,
            "name": attack.name,
            "settings": plain(attack),
        },
    }


def _copy_own(names: Sequence[str], folder: Path) -> None:
    """Copy modules that are not installed, and those of them that they use, to a folder.

    The other side then needs no path to where they lie.
    """
    folder.mkdir()
    waiting, seen = [sys.modules[name] for name in names if name in sys.modules], set[str]()
    while waiting and len(seen) < OWN_MODULES_MOST:
        module = waiting.pop()
        if module.__name__ in seen or not _is_own(module):
            continue
        seen.add(module.__name__)
        parts = module.__name__.split(".")
        source = Path(str(module.__file__))
        place = folder.joinpath(*parts)
        place = place / "__init__.py" if source.stem == "__init__" else place.with_suffix(".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        above = [".".join(parts[:end]) for end in range(1, len(parts))]
        used = {getattr(value, "__module__", None) for value in vars(module).values()}
        used |= {v.__name__ for v in vars(module).values() if isinstance(v, ModuleType)}
        waiting += [sys.modules[name] for name in (*above, *used) if name in sys.modules]


def _is_own(module: ModuleType) -> bool:
    """Whether a module is a user's file that is not installed."""
    source = getattr(module, "__file__", None)
    if source is None or not str(source).endswith(".py"):
        return False
    return not any(Path(source).resolve().is_relative_to(root) for root in _installed())


def _package_roots() -> list[Path]:
    """Folders of this package, wherever each of them lies."""
    package = Path(errors.__file__).parents[1]
    name, _, _ = __package__.partition(".")
    found = (find_spec(f"{name}.{room}") for room in ("attacks", "defenses"))
    beside = [Path(str(spec.origin)).parent for spec in found if spec is not None]
    return [place.resolve() for place in (package, *beside)]


def _installed() -> list[Path]:
    """Where Python finds what is installed: the other side's path, without working directories."""
    attendant = _Attendant.get()
    return [*_package_roots(), *attendant.roots]


def _readable(hidden: Sequence[Path]) -> list[Path]:
    system = [Path(path) for path in walls.SYSTEM]
    return walls.readable([*_installed(), *system], hidden)


def _played(
    order: dict[str, Any], context: Context, folder: Path, outcome: type[Outcome]
) -> tuple[Outcome, int]:
    """Follow an attack to its end."""
    name = str(order["attack"]["name"])
    line = _Attendant.get().connect(folder)
    pid = 0
    try:
        with suppress(ConnectionError):  # it hung up; what it said before is read below
            line.send(order)
        head, _ = _next(line, name, folder)
        pid = int(head["pid"])
        while True:
            head, tensors = _next(line, name, folder)
            if head.get("is") == "done":
                peak = head.get("peak_bytes")
                return _outcome(outcome, head, tensors, name), peak if type(peak) is int else 0
            if head.get("is") == "failed":
                raise failure(head, name, plugin=is_plugin(order["attack"]["module"]))
            _attended(head, tensors, line, context, name)
    finally:
        line.close()
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        written = _written(folder)
        if written:
            print(visible(written), end="", file=sys.stderr)


def _next(line: Line, attack: str, folder: Path) -> Frame:
    try:
        frame = line.receive()
    except BrokenLine as error:
        raise IncompatibleError(f"Attack '{attack}' sent what is no message: {error}.") from None
    if frame is None:
        said = _written(folder)[-500:].strip()
        raise IncompatibleError(
            f"The process of attack '{attack}' ended without an answer{f': {said}' * bool(said)}.",
            next_step="Give the command again with --resume; with less memory free it may need "
            "fewer targets.",
        )
    return frame


def _attended(
    head: dict[str, Any], tensors: dict[str, Tensor], line: Line, context: Context, attack: str
) -> None:
    """Do what one message asks for."""
    match head.get("is"):
        case "event":
            name, data = head.get("name"), head.get("data")
            if isinstance(name, str) and isinstance(data, dict):
                context.report(Event(name, {**data, **tensors}))
        case "load":
            kept = context.cache.load(_piece(head, attack))
            with suppress(ConnectionError):
                line.send({"is": "piece", "found": kept is not None}, kept)
        case "save":
            context.cache.save(_piece(head, attack), tensors)
        case "refused":
            raise refusal(head, attack)
        case other:
            raise IncompatibleError(f"Attack '{attack}' sent an unknown message {other!r}.")


def _piece(head: dict[str, Any], attack: str) -> str:
    name = head.get("name")
    if not isinstance(name, str) or not PIECE.fullmatch(name):
        raise IncompatibleError(f"Attack '{attack}' keeps a piece under the name {name!r}.")
    return name


def _outcome(
    kind: type[Outcome], head: dict[str, Any], tensors: dict[str, Tensor], attack: str
) -> Outcome:
    texts = head.get("texts")
    fields = {item.name for item in dataclasses.fields(kind)}
    whole = isinstance(texts, dict) and all(isinstance(v, str) for v in texts.values())
    try:
        if not whole:
            raise ValueError("its texts are no texts")
        return kind.load(tensors, texts)  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError) as error:
        raise IncompatibleError(
            f"Attack '{attack}' did not return a {kind.__name__} ({', '.join(sorted(fields))}): "
            f"{error}."
        ) from None


def _written(folder: Path) -> str:
    path = folder / WROTE
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


class _Attendant:
    """The process that makes one copy of itself for each attack; one for this process."""

    _one: _Attendant | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._owner = os.getpid()
        mine, other = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if KEPT_VARIABLES.fullmatch(k)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.attacker", str(other.fileno())],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            start_new_session=True,  # Ctrl-C is for the evaluator, which then hangs up
        )
        other.close()
        self._control = mine
        self._roots: list[Path] | None = None

    @property
    def roots(self) -> list[Path]:
        """Folders from which it imports."""
        if self._roots is None:
            told = Line(self._control).receive()
            if told is None:
                raise DamagedInputError(
                    "The process that attacks run in did not start.",
                    next_step="Run `python -m fedre_privacy.sealed.attacker` to see why, or use "
                    "--isolation same-process.",
                )
            head, _ = told
            given = [Path(p) for p in (*head["path"], *head["prefixes"])]
            self._roots = [path.resolve() for path in given if path.is_absolute()]
        return self._roots

    def connect(self, folder: Path) -> Line:
        """A line to a new copy, which is given a folder."""
        self.roots  # noqa: B018 (waits until it is ready)
        mine, other = socket.socketpair()
        socket.send_fds(self._control, [os.fsencode(folder)], [other.fileno()])
        other.close()
        return Line(mine)

    @classmethod
    def get(cls) -> _Attendant:
        """The one of this process, started if there is none."""
        with cls._lock:
            one = cls._one
            if one is None or one._owner != os.getpid() or one._process.poll() is not None:
                cls._one = one = cls()
            return one

    @classmethod
    def drop(cls) -> None:
        """End it, and with it every copy."""
        with cls._lock:
            one, cls._one = cls._one, None
        if one is not None and one._owner == os.getpid():
            one._control.close()
            if one._roots is None:  # still starting: it has made no copy yet
                one._process.kill()
            one._process.wait()


atexit.register(_Attendant.drop)
