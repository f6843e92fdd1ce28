"""One process works in a folder at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from .errors import InUseError, StorageError
from .system import writing

LOCK = ".lock"
"""Name of the file in the folder that is locked."""

WAIT_SECONDS = 0.2
"""Between two looks at a lock that is waited for."""

STALE_SECONDS = 2.0
"""Age from which a file of a process that this machine does not know is left behind."""

TEMPORARY = re.compile(r"\.\d+\..+")
"""Names of files being written, see `files.write_with`."""


@contextmanager
def held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder, which is made if it is not there, while a block runs.

    The system releases the lock of a process that was killed. The file itself goes when the block
    ends, and so does the folder if nothing was put into it. A file system that knows no locks is
    worked on without one.

    Args:
        wait: wait for another holder instead of refusing.

    Raises:
        InUseError: another process or thread holds it.
        StorageError: the folder cannot be written.
    """
    path = folder / LOCK
    handle = _taken(path)
    while handle is None:
        if not wait:
            raise _in_use(folder)
        time.sleep(WAIT_SECONDS)
        handle = _taken(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)
        with suppress(OSError):
            folder.rmdir()


def refuse_if_held(folder: Path) -> None:
    """Refuse a folder that another process works in.

    Raises:
        InUseError: with the process, its machine, and since when.
    """
    if is_held(folder):
        raise _in_use(folder)


def is_held(folder: Path) -> bool:
    """Whether somebody works in a folder now."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _locked(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def remove_left(folder: Path) -> None:
    """Remove what a process that was killed at its very end left: its lock and temporary files."""
    if (folder / LOCK).exists():
        with suppress(InUseError, StorageError), held(folder):
            remove_temporaries(folder)


def temporaries(folder: Path) -> list[Path]:
    """Files that are being written, or were when a process was killed, in a folder and one below.

    Folders below that are held by themselves (``attacks/NAME``, ``audits/NAME``) are left out.
    """
    apart = ("attacks", "audits")
    places = [folder, *(path for path in folder.glob("*") if path.name not in apart)]
    found = (path for place in places if place.is_dir() for path in place.iterdir())
    return sorted(path for path in found if TEMPORARY.fullmatch(path.name) and path.is_file())


def remove_temporaries(folder: Path) -> None:
    """Remove files that killed processes were writing; for who holds the folder."""
    for path in temporaries(folder):
        with suppress(OSError):
            path.unlink()


def remove_stale(folder: Path) -> None:
    """Remove files that processes of this machine were writing and that are gone, unheld."""
    for path in temporaries(folder):
        with suppress(OSError):
            pid = int(path.name.split(".")[1])
            if not _alive(pid) and time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _taken(path: Path) -> int | None:
    """Open and lock a file; return its handle, or None where somebody else has it."""
    while True:
        try:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # who held it before has just removed the empty folder
            continue
        if not _locked(handle, fcntl.LOCK_EX):
            os.close(handle)
            return None
        if _is(handle, path):
            _sign(handle)
            return handle
        os.close(handle)  # who held it before has removed the file that was opened


def _sign(handle: int) -> None:
    """Say in a lock's file who holds it."""
    told = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with suppress(OSError):  # on a full disk a lock says no more than that it is held
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(told).encode(), 0)


def _locked(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
    return True


def _is(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _in_use(folder: Path) -> InUseError:
    who = "another process"
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads((folder / LOCK).read_bytes())
        who = f"process {int(told['pid'])} on {told['host']}, since {told['since']}"
    return InUseError(
        f"{folder} is in use by {who}.",
        next_step="Wait until that has ended, or end it, and give this command again with "
        "--resume.",
    )
