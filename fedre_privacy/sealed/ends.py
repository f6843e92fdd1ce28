"""How an attack's process says that it ended without an answer, as exceptions on this side."""

from __future__ import annotations

from typing import TypeVar

from fedre_privacy.core import errors
from fedre_privacy.core.blame import failed

from .line import Head

E = TypeVar("E", bound=Exception)


def refusal(head: Head, attack: str) -> errors.FedreError:
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


def failure(head: Head, attack: str, *, plugin: bool) -> Exception:
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
        error = failed(attack, f"{name}: {text}")
    return _noted(error, head, attack)


def _noted(error: E, head: Head, attack: str) -> E:
    """With the traceback of the other process, for the log."""
    error.add_note(f"Raised by attack '{attack}' in its own process:\n{head.get('traceback')}")
    return error
