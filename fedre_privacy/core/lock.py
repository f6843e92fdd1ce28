"""One process works in a folder at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import InUseError, StorageError
from .os_errors import file_write_errors

LOCK = ".lock"
"""Name of the file in the folder that is locked."""

WAIT_SECONDS = 0.2
"""Between two looks at a lock that is waited for."""

STALE_SECONDS = 2.0
"""Age from which a file of a process that this machine does not know is left behind."""

TEMPORARY = re.compile(r"\.\d+\..+")
"""Names of files being written, see `files.write_with`."""


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
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
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    with file_write_errors(path):
        taken = _take(lock, path, wait=wait)
    if not taken:
        raise _in_use(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()
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
    lock = FileLock(folder / LOCK, fallback_to_soft=False)
    if not (folder / LOCK).exists():
        return False
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


def remove_left(folder: Path) -> None:
    """Remove what a process that was killed at its very end left: its lock and temporary files."""
    if (folder / LOCK).exists():
        with suppress(InUseError, StorageError), lock_folder(folder):
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


def _take(lock: FileLock, path: Path, *, wait: bool) -> bool:
    """Lock a file and say in it who holds it; return whether it could be had."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=wait, poll_interval=WAIT_SECONDS)
        except Timeout:
            return False
        except FileNotFoundError:  # who held it before has just removed the empty folder
            continue
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        told = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with suppress(OSError):  # on a full disk a lock says no more than that it is held
            path.write_text(json.dumps(told))
        return True


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
