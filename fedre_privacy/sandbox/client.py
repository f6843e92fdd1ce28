"""From the evaluator's side: hand a sealed observation over, and take back what was answered.

The attack gets a folder of its own with the packed observation and one line. Over the line it
reports how far it is, keeps finished pieces and asks for them again, and answers. Nothing else
leaves or enters: not the run, not the data, not a path, not a seed that made them.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context, ResultCache, attacks, check_outcome
from fedre_privacy.core import errors
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import build, plain
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.events import Event, only_an_attacks
from fedre_privacy.core.outcomes import Outcome
from fedre_privacy.core.plugin_errors import is_plugin, plugin_failure
from fedre_privacy.core.registry import import_plugin
from fedre_privacy.core.types import Broadcast, Observation, Upload
from fedre_privacy.core.units import human_bytes

from . import bubblewrap as sandbox
from .attack_description import stand_in, stands_in
from .channel import BrokenLine, Frame, Head, Line
from .module_recipes import Modules, frozen_copies
from .observation_files import MODULES, pack, unpack
from .process import AttackProcess, OwnedFolder, begin, import_folders, take
from .user_modules import copy_own_modules

E = TypeVar("E", bound=Exception)

AUTO, STRICT, PROCESS, SAME = "auto", "strict", "process", "same-process"
ISOLATION = (AUTO, STRICT, PROCESS, SAME)
"""How far an attack is kept from the run: in a process of its own in a sandbox (`strict`), without
one (`process`), or in this process (`same-process`); `auto` is the strictest that works here."""

PIECE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names under which an attack may keep a piece."""

PIECES_MOST, PIECES_BYTES_MOST = 100_000, 1 << 34
"""How many pieces an attack may keep, and their bytes together."""


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


def choose_isolation(isolation: str, device: torch.device) -> str:
    """Where an attack will run.

    Raises:
        ConfigError: the name is unknown, or this system or device cannot do what is asked.
    """
    if isolation not in ISOLATION:
        raise ConfigError(errors.unknown_name("isolation", isolation, ISOLATION))
    if device.type != "cpu":
        if isolation in (STRICT, PROCESS):
            raise ConfigError(
                f"--isolation {isolation} runs an attack in a process of its own, which cannot "
                f"share {device}.",
                next_step="Use --device cpu, or leave --isolation out.",
            )
        return SAME
    if isolation == STRICT and (why := sandbox.refusal()):
        raise ConfigError(
            f"--isolation strict needs bubblewrap, {why}.",
            next_step=f"{sandbox.PACKAGE}, or use --isolation process; docs/threat_models.md says "
            "what that leaves open.",
        )
    return strictest() if isolation == AUTO else isolation


def strictest() -> str:
    """What `auto` means here."""
    return PROCESS if sandbox.refusal() else STRICT


def warm(isolation: str, device: torch.device, hidden: Sequence[Path]) -> None:
    """Begin the process of the next attack, so that it is ready when the uploads are.

    Args:
        hidden: what `run_attack` will be told; for something else a new process is begun then.

    Raises:
        ConfigError: as `choose_isolation`.
    """
    how = choose_isolation(isolation, device)
    if how != SAME:
        begin(strict=how == STRICT, hidden=hidden)


def run_attack(
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
        isolation: see `ISOLATION`.
        hidden: files and folders that the attack must not be able to open.

    Raises:
        FedreError: as the attack refuses, or what it returned is not what was promised.
        Exception: what a built-in attack raised, by its built-in type.
    """
    how = choose_isolation(isolation, context.device)
    context = dataclasses.replace(context, report=only_an_attacks(context.report))
    held = {name: getattr(observation, name) for name in MODULES}
    objects = {n: some for n, some in held.items() if some and not isinstance(some, Modules)}
    if objects and isolation in (STRICT, PROCESS):
        raise ConfigError(
            f"Isolation '{isolation}' runs an attack in a process of its own, to which a module "
            "that is given as an object cannot be handed.",
            next_step="Leave isolation out. To keep a sandbox, record the uploads and name a "
            "function that makes the module: fedre-attack --uploads (docs/artifact_format.md).",
        )
    if objects or how == SAME:
        attack = _import_attack(attack) if stands_in(attack) else attack
        answer = _run_in_this_process(attack, observation, context, objects)
        return SealedResult(check_outcome(attack, observation, answer, outcome), SAME)
    process = take(strict=how == STRICT, hidden=hidden)
    try:
        pack(observation, process.folder)
        order = _order(attack, observation, context, process)
        answer = _follow_attack(order, context, process, outcome)
        peak = process.peak_bytes()
    finally:
        process.end()
        print(process.printed(), end="", file=sys.stderr)
    return SealedResult(check_outcome(attack, observation, answer, outcome), how, peak)


def _import_attack(attack: Attack) -> Attack:
    """An attack that runs in this process, in place of what stands for it."""
    kind = type(attack)
    found: Any = import_plugin(f"{kind.__module__}:{kind.__qualname__}", "attack")
    found.name = attack.name
    problems: list[str] = []
    made: Attack | None = build(found, plain(attack), at="attack", problems=problems)
    if made is None:
        raise ConfigError(*problems)
    return made


def _run_in_this_process(
    attack: Attack, observation: Observation, context: Context, objects: dict[str, Any]
) -> Outcome:
    """Run an attack in this process, on a copy that shares nothing with the observation.

    Args:
        objects: its fields whose modules are objects, of which the attack gets copies.
    """
    room = OwnedFolder()
    try:
        none: dict[str, Any] = dict.fromkeys(objects, Modules({}))
        pack(dataclasses.replace(observation, **none), room.path)
        copies: dict[str, Any] = {name: frozen_copies(some) for name, some in objects.items()}
        outcome: Outcome = attack(dataclasses.replace(unpack(room.path), **copies), context)
        return outcome
    finally:
        room.remove()


def _order(
    attack: Attack, observation: Observation, context: Context, process: AttackProcess
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
    messages: Sequence[Upload | Broadcast] = (
        *observation.targets,
        *observation.uploads,
        *observation.broadcasts,
    )
    named = {type(artifact).__module__ for one in messages for artifact in one.artifacts}
    if observation.rehearse is not None:
        named |= observation.rehearse.modules()
    for name in MODULES:
        held = getattr(getattr(observation, name), "held", {})
        named |= {module for one in held.values() for module in one.recipe.modules()}
    imports = sorted((named | {kind.__module__}) - {Artifact.__module__})
    copy_own_modules(imports, process.folder / "modules", import_folders())
    return {
        "folder": process.place,
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


@cache
def describe_attack(path: str) -> type[Attack]:
    """A class that stands for an attack given as ``module:Class``; its module is not imported here.

    Raises:
        ConfigError: there is no such class, or it is no attack.
        IncompatibleError: the module cannot be imported where attacks run, or says of its attack
            what only its code can tell.
    """
    module, _, name = path.partition(":")
    process = take(strict=strictest() == STRICT, hidden=())
    try:
        copy_own_modules([module], process.folder / "modules", import_folders())
        process.await_ready()
        process.line.send({"folder": process.place, "describe": [module, name]})
        head, _ = _next(process, path)
    finally:
        process.end()
    if head.get("is") == "refused":
        raise _refusal(head, path)
    if head.get("is") != "described" or not isinstance(head.get("told"), dict):
        raise IncompatibleError(
            f"attack '{path}' cannot be imported: {head.get('type')}: {head.get('text')}",
            next_step="Give the command in the folder of the module, or name that in PYTHONPATH.",
        )
    return stand_in(module, name, head["told"])


attacks.described = describe_attack


def _follow_attack(
    order: dict[str, Any], context: Context, process: AttackProcess, outcome: type[Outcome]
) -> Outcome:
    """Follow an attack to its end."""
    name = str(order["attack"]["name"])
    pieces = _Pieces(context.cache, name)
    process.await_ready()
    with suppress(ConnectionError):  # it hung up; what it said before is read below
        process.line.send(order)
    while True:
        head, tensors = _next(process, name)
        if head.get("is") == "done":
            return _outcome(outcome, head, tensors, name)
        if head.get("is") == "failed":
            raise _failure(head, name, plugin=is_plugin(order["attack"]["module"]))
        _answer_message(head, tensors, process.line, context, pieces)


def _next(process: AttackProcess, attack: str) -> Frame:
    try:
        frame = process.line.receive()
    except BrokenLine as error:
        raise IncompatibleError(f"Attack '{attack}' sent what is no message: {error}.") from None
    if frame is None:
        process.end()
        said = process.printed()[-500:].strip()
        raise IncompatibleError(
            f"The process of attack '{attack}' ended without an answer{f': {said}' * bool(said)}.",
            next_step="Give the command again with --resume; with less memory free it may need "
            "fewer targets.",
        )
    return frame


def _answer_message(
    head: dict[str, Any],
    tensors: dict[str, Tensor],
    line: Line,
    context: Context,
    pieces: _Pieces,
) -> None:
    """Do what one message asks for."""
    match head.get("is"):
        case "event":
            name, data = head.get("name"), head.get("data")
            if isinstance(name, str) and isinstance(data, dict):
                context.report(Event(name, {**data, **tensors}))
        case "load":
            kept = pieces.load(head.get("name"))
            with suppress(ConnectionError):
                line.send({"is": "piece", "found": kept is not None}, kept)
        case "save":
            pieces.save(head.get("name"), tensors)
        case "refused":
            raise _refusal(head, pieces.attack)
        case other:
            raise IncompatibleError(f"Attack '{pieces.attack}' sent an unknown message {other!r}.")


@dataclass
class _Pieces:
    """What an attack keeps on this side, under names and up to an amount that are checked."""

    cache: ResultCache
    attack: str
    sizes: dict[str, int] = field(default_factory=dict)

    def load(self, name: object) -> dict[str, Tensor] | None:
        return self.cache.load(self._checked_name(name))

    def save(self, name: object, tensors: dict[str, Tensor]) -> None:
        self.sizes[self._checked_name(name)] = sum(one.nbytes for one in tensors.values())
        held = sum(self.sizes.values())
        if len(self.sizes) > PIECES_MOST or held > PIECES_BYTES_MOST:
            raise IncompatibleError(
                f"Attack '{self.attack}' keeps {len(self.sizes)} pieces of {human_bytes(held)}; at "
                f"most {PIECES_MOST} and {human_bytes(PIECES_BYTES_MOST)} are kept.",
                next_step="Ask for fewer targets, or let the attack keep less.",
            )
        self.cache.save(str(name), tensors)

    def _checked_name(self, name: object) -> str:
        if not isinstance(name, str) or not PIECE.fullmatch(name):
            raise IncompatibleError(
                f"Attack '{self.attack}' keeps a piece under the name {name!r}."
            )
        return name


def _outcome(kind: type[Outcome], head: Head, tensors: dict[str, Tensor], attack: str) -> Outcome:
    texts = head.get("texts")
    try:
        if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
            raise ValueError("its texts are no texts")
        return kind.load(tensors, texts)
    except (ValueError, TypeError, KeyError) as error:
        fields = ", ".join(sorted(item.name for item in dataclasses.fields(kind)))
        raise IncompatibleError(
            f"Attack '{attack}' did not return a {kind.__name__} ({fields}): {error}."
        ) from None


def _refusal(head: Head, attack: str) -> errors.FedreError:
    """An error of this package that an attack's process raised."""
    kind = getattr(errors, str(head.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, errors.FedreError)):
        kind = errors.AttackFailedError
    if kind in (errors.FedreError, errors.Interrupted):  # whose exit codes say something else
        kind = errors.AttackFailedError
    problems, step = head.get("problems"), head.get("next_step")
    error = kind(
        *map(str, problems if isinstance(problems, list) else [problems]),
        next_step=None if step is None else str(step),
    )
    return _noted(error, head, attack) if head.get("traceback") else error


def _failure(head: Head, attack: str, *, plugin: bool) -> Exception:
    """Any other exception that an attack ended with, by its built-in type.

    Args:
        plugin: it is no part of this package, so that the error is its own.
    """
    name, text = str(head.get("type")), str(head.get("text"))
    error: Exception = RuntimeError(f"{name}: {text}")
    for usual in (ValueError, TypeError, RuntimeError, KeyError, IndexError, AttributeError):
        if usual.__name__ == name:
            error = usual(text)
    if name == MemoryError.__name__:
        error = MemoryError(text)
    elif plugin:
        error = plugin_failure(attack, f"{name}: {text}")
    return _noted(error, head, attack)


def _noted(error: E, head: Head, attack: str) -> E:
    """With the traceback of the other process, for the log."""
    error.add_note(f"Raised by attack '{attack}' in its own process:\n{head.get('traceback')}")
    return error
