"""Secrets of runs: 128 bits that hidden draws follow from, named everywhere by a fingerprint.

Settings, names and pages hold the fingerprint alone, a hash that leads back to nothing. The secret
itself is in ``private/secret`` of the run's folder, in the memory of the process that reads it, and
in the environment of the processes that it starts; the process of an attack is given neither.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

from . import files
from .errors import ConfigError, DamagedInputError, MissingInputError

NEW = "new"
"""What asks for 128 bits of the system."""

SECRET_FILE = Path("private") / "secret"
"""In the folder of a run."""

MAKE_ONE = "Make one: python -c 'import secrets; print(secrets.token_hex(16))' > FILE"
_VARIABLE = "FEDRE_SECRET_"
_SECRET = re.compile(r"[0-9a-f]{32}")


def fingerprint(secret: str) -> str:
    """Name a secret by 16 hexadecimal digits of a hash."""
    return hashlib.sha256(f"secret of a run|{secret}".encode()).hexdigest()[:16]


def remember(secret: str) -> str:
    """Keep a secret for this process and those that it starts; return its fingerprint."""
    name = fingerprint(secret)
    os.environ[_VARIABLE + name] = secret
    return name


def chosen_secret(given: str) -> str:
    """Remember a new secret, or the one that a file holds; return its fingerprint.

    Args:
        given: ``new``, or a file of 32 hexadecimal digits.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    if given == NEW:
        return remember(secrets.token_hex(16))
    path = Path(given).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"--secret takes '{NEW}' or a file; there is no file {path}.",
            next_step=MAKE_ONE,
        )
    return remember(_read_secret(path))


def kept_secret(path: Path) -> str:
    """Remember the secret of a file, which is made where there is none; return its fingerprint."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, secrets.token_hex(16))
    return remember(_read_secret(path))


def learn(folder: Path, name: str) -> None:
    """Remember the secret of a run where its folder holds it.

    Args:
        name: its fingerprint, as the run's settings have it; empty: the run has none.

    Raises:
        DamagedInputError: the folder holds another one.
    """
    path = folder / SECRET_FILE
    if not name or not path.is_file():
        return
    if remember(_read_secret(path)) != name:
        raise DamagedInputError(
            f"{path} is not the secret that {folder} was trained with ({name}).",
            next_step="Restore the file, or train again with --secret new.",
        )


def write_secret(folder: Path, name: str) -> None:
    """Write the secret of a run to its folder, readable by its owner alone."""
    (folder / SECRET_FILE).parent.mkdir(parents=True, exist_ok=True)
    _write(folder / SECRET_FILE, secret_named(name))


def secret_named(name: str) -> str:
    """The secret of a fingerprint.

    Raises:
        MissingInputError: this process was not given it.
    """
    found = os.environ.get(_VARIABLE + name, "")
    if fingerprint(found) != name:
        raise MissingInputError(
            f"The settings name the secret {name}, which is not known here.",
            next_step=f"Give it: --secret RUN/{SECRET_FILE} of the run that was trained with it. "
            "Or train with another: --secret new.",
        )
    return found


def follows_from(name: str) -> str:
    """Say what the hidden draws of a run follow from: the secret of a fingerprint, or its seed."""
    if name:
        return f"{name}; who has which image and all hidden draws follow from it"
    return (
        "none: whoever has the images and guesses train.seed can recompute who has which image "
        "(--secret new closes that)"
    )


def hidden_number(name: str, purpose: str) -> int:
    """128 bits that follow one-way from the secret of a fingerprint and a purpose."""
    text = f"{secret_named(name)}|{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def _write(path: Path, secret: str) -> None:
    files.write_text(path, secret + "\n")
    path.chmod(0o600)


def _read_secret(path: Path) -> str:
    with path.open("rb") as file:
        text = file.read(64).decode("ascii", errors="replace").strip().lower()
    if not _SECRET.fullmatch(text):
        raise ConfigError(
            f"{path} holds no secret: 32 hexadecimal digits are needed.",
            next_step=MAKE_ONE,
        )
    return text
