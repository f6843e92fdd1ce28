"""Every refusal a user can meet: one type per exit code, one sentence pattern.

A message says what was given, what is needed, and the next command. Problems of one kind are
collected and raised together, so that a user mends them in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import ClassVar


class FedreError(Exception):
    """Base of all expected errors.

    Args:
        problems: one sentence (or more) per problem; all are shown.
        next_step: what to type or change; shown last.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, *problems: str, next_step: str | None = None) -> None:
        self.problems: tuple[str, ...] = problems
        self.next_step = next_step
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = list(self.problems)
        if self.next_step:
            lines.append(self.next_step)
        return "\n".join(lines)


class ConfigError(FedreError):
    """A name, key, value or option that does not exist or is out of range (exit 2)."""

    exit_code = 2


class IncompatibleError(FedreError):
    """Valid parts that do not fit together, or a threat model that is too weak (exit 3)."""

    exit_code = 3


class MissingInputError(FedreError):
    """A file, round, client or data set that is absent (exit 4)."""

    exit_code = 4


class DamagedInputError(FedreError):
    """A file that is truncated, altered, too new, or of a kind we refuse to load (exit 4)."""

    exit_code = 4


class StorageError(FedreError):
    """A file that the system would not let us write: full, read-only, out of quota (exit 4)."""

    exit_code = 4


class InUseError(FedreError):
    """A folder in which another process works (exit 4)."""

    exit_code = 4


class DivergedError(FedreError):
    """Training or an attack that ended without a usable number (exit 5)."""

    exit_code = 5


class PartialError(FedreError):
    """Part of the work failed; the rest is kept."""

    exit_code = 5


class RefutedError(FedreError):
    """An audit showed more than a defence promises (exit 7)."""

    exit_code = 7


class NotRepeatedError(FedreError):
    """A result was repeated and came out otherwise than claimed (exit 8)."""

    exit_code = 8


class OutOfMemoryError(FedreError):
    """Not enough memory even for the smallest piece of work (exit 5)."""

    exit_code = 5


class AttackFailedError(FedreError):
    """An attack that is no part of this package failed by an error of its own (exit 9)."""

    exit_code = 9


class MissingExtraError(FedreError):
    """An optional package or weight file that is not installed (exit 6)."""

    exit_code = 6


class Interrupted(FedreError):
    """Stopped by the user; what was finished is kept (exit 130)."""

    exit_code = 130


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the known name closest to `name` (a YAML key, so text or not), or None."""
    found = get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return found[0] if found else None


def _plain(word: str) -> str:
    """A word without case and what stands between its parts: Non-IID as noniid."""
    return "".join(sign for sign in word.lower() if sign.isalnum())


def unknown_name(
    what: str,
    name: str,
    names: Sequence[str],
    *,
    see: str = "",
    at: str = "",
    also: Mapping[str, str] | None = None,
) -> str:
    """Build the sentence for an unknown name, with the nearest known one.

    Args:
        also: other words of the field, and the name that each stands for here.

    >>> unknown_name("attack", "dipp", ["dip", "pixel"], see="fedre-attack list")
    "Unknown attack 'dipp'. Did you mean 'dip'? Available: dip, pixel (fedre-attack list)."
    """
    words = {_plain(word): known for word, known in (also or {}).items()}
    words |= {_plain(known): known for known in names}
    close = words.get(_plain(str(name))) or nearest(name, names)
    hint = f" Did you mean '{close}'?" if close else ""
    listed = ", ".join(names) if names else "none"
    tail = f" ({see})" if see else ""
    where = f" at {at}" if at else ""
    return f"Unknown {what} '{name}'{where}.{hint} Available: {listed}{tail}."
