"""Whose error it is: that of a plug-in, or a bug of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import AttackFailedError, FedreError

OURS = f"{__name__.partition('.')[0]}."


@contextmanager
def attribute_errors(attack: object) -> Iterator[None]:
    """Call what a plug-in raises its own error; what a built-in attack raises is a bug of ours.

    Full memory is nobody's.

    Raises:
        AttackFailedError: from the error, whose traceback it keeps.
    """
    try:
        yield
    except (FedreError, MemoryError):
        raise
    except Exception as error:
        if not is_plugin(type(attack).__module__) or type(error).__name__ == "OutOfMemoryError":
            raise
        name = str(getattr(attack, "name", ""))
        raise plugin_failure(name, f"{type(error).__name__}: {error}") from error


def is_plugin(module: str) -> bool:
    """Whether what a module defines is no part of this package."""
    return not module.startswith(OURS)


def plugin_failure(attack: str, why: str) -> AttackFailedError:
    """The error of a plug-in that failed."""
    return AttackFailedError(f"Attack '{attack}' failed: {why}")
