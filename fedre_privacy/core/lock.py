"""One process works in a folder at a time.

A lock (`lock_folder`) ends with the process that holds it, and counts on this machine. A lease
(`lease_folder`) counts on every machine that shares the folder: it is a file that can be created
once, which its holder touches again and again. Another machine takes a lease that nobody touches.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, SoftFileLease, Timeout

from .errors import InUseError, StorageError
from .host import HOST
from .os_errors import file_write_errors

LOCK = ".lock"
"""Name of the file in the folder that is locked."""

LEASE = ".lease"
"""Name of the file in the folder that is leased."""

LEASE_SECONDS = 180.0
"""Without a touch, after which another machine takes a lease. Its holder touches it three times as
often; network file systems show a touch after 60 seconds at most."""

WAIT_SECONDS = 0.2
"""Between two looks at a lock that is waited for."""

STALE_SECONDS = 2.0
"""Age from which a file of a process that this machine does not know is left behind."""

TEMPORARY = re.compile(r"\.(\d+)\.(?:([0-9a-f]{8})\.)?.+")
"""Names of files being written, by process and machine, see `files.write_with`."""


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


@contextmanager
def lease_folder(folder: Path, lost: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a folder, which is made if it is not there, for all machines, while a block runs.

    Other holders are waited for. The lease of a process of this machine that was killed is taken at
    once, another machine's after `LEASE_SECONDS`. What the last holder wrote beside the folder is
    seen: creating a file there makes a network file system look again. The file goes when the block
    ends, and so does the folder if nothing was put into it.

    Args:
        lost: called in a thread of its own where this process gave no sign for so long that
            another one took the lease.

    Raises:
        StorageError: the folder cannot be written.
    """
    lease = _lease(folder, lost)
    with file_write_errors(folder / LEASE):
        while True:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lease.acquire(poll_interval=WAIT_SECONDS)
                break
            except OSError as error:
                if not _just_removed(error):
                    raise
        look = folder.with_name(f".{os.getpid()}.{HOST}.{folder.name}")
        look.touch()
        look.unlink()
    try:
        yield
    finally:
        lease.release()
        with suppress(OSError):
            folder.rmdir()


def is_leased(folder: Path) -> bool:
    """Whether somebody holds a lease on a folder, or held it on another machine and was killed."""
    if not (folder / LEASE).exists():
        return False
    lease = _lease(folder)
    try:
        lease.acquire(blocking=False)
    except Timeout:
        return True
    except OSError:
        return False
    lease.release()
    return False


def _lease(folder: Path, lost: Callable[[], None] = lambda: None) -> SoftFileLease:
    return SoftFileLease(
        folder / LEASE,
        lease_duration=LEASE_SECONDS,
        on_compromise=lambda _: lost(),
        thread_local=False,
    )


def remove_left(folder: Path) -> None:
    """Remove what a process that was killed at its very end left: its lock and temporary files."""
    if (folder / LOCK).exists():
        with suppress(InUseError, StorageError), lock_folder(folder):
            remove_temporaries(folder)


def remove_left_lease(folder: Path) -> None:
    """Remove the lease and the folder of a process of this machine that was killed at its end."""
    if folder.is_dir() and not is_leased(folder):
        with suppress(OSError):
            folder.rmdir()


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
            pid, host = TEMPORARY.fullmatch(path.name).groups()  # type: ignore[union-attr]
            if host in (None, HOST) and not _alive(int(pid)) and is_old(path):
                path.unlink()


def is_old(path: Path) -> bool:
    """Whether a file is older than `STALE_SECONDS`."""
    return time.time() - path.stat().st_mtime > STALE_SECONDS


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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=wait, poll_interval=WAIT_SECONDS)
        except Timeout:
            return False
        except OSError as error:
            if _just_removed(error):
                continue
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


def _just_removed(error: OSError) -> bool:
    """Whether an error means that who held a folder before has just removed it, empty.

    ``mkdir`` says that a folder exists where it goes before ``mkdir`` can look what it is.
    """
    if isinstance(error, FileExistsError) and error.filename:
        return Path(error.filename).is_dir() or not os.path.lexists(error.filename)
    return isinstance(error, FileNotFoundError)


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
