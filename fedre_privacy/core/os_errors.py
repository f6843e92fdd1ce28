"""What the system refuses, files, memory, processes, as errors that say what to do."""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from safetensors import SafetensorError

from .errors import FedreError, MissingInputError, OutOfMemoryError, StorageError
from .units import human_bytes

P = ParamSpec("P")
T = TypeVar("T")

RESUME = "give the same command again with --resume; what was finished is kept."
ROOM = f"Free some space there, or choose another folder with --runs-dir, and {RESUME}"
MEND = f"Make it writable, or choose another folder with --runs-dir, and {RESUME}"
MOVE = f"Look after that disk, or copy the folder to another one, and {RESUME}"
OTHER = "Mend that, or choose another folder with --runs-dir."
UNWRITABLE = {
    errno.ENOSPC: ROOM, errno.EDQUOT: ROOM, errno.EFBIG: ROOM,
    errno.EACCES: MEND, errno.EPERM: MEND, errno.EROFS: MEND,
    errno.EIO: MOVE, errno.ESTALE: MOVE,
    errno.ENOTDIR: OTHER, errno.EISDIR: OTHER, errno.EEXIST: OTHER, errno.ENAMETOOLONG: OTHER,
    errno.ELOOP: OTHER,
}  # fmt: skip
"""Errors of the file system that the user can mend, and how."""

TOO_MANY = {
    errno.EMFILE: ("files are open in this process", "ulimit -n"),
    errno.ENFILE: ("files are open on this machine", "sysctl fs.file-max"),
    errno.EAGAIN: ("processes or threads of this user run", "ulimit -u"),
}
"""Errors of a limit: what there is too much of, and what shows the limit."""

FULL = re.compile(r"can't allocate memory|[Cc]annot allocate memory|not enough memory|bad_alloc")
"""How errors of other packages say that memory is full."""
NO_THREAD = re.compile(r"can't start new thread|Resource temporarily unavailable")


@contextmanager
def file_write_errors(path: Path) -> Iterator[None]:
    """Turn what the system refuses while a block writes a file into one clear error.

    Raises:
        StorageError: with the file, the reason, and how much is free where that is the reason.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        refused = refusal(path, error)
        if refused is None:
            raise
        raise refused from None


def refusal(path: Path, error: Exception) -> FedreError | None:
    """What to tell the user of an error of the file system; None where it is none to mend.

    safetensors wraps such errors in its own, whose text ends in the number.
    """
    number = getattr(error, "errno", None)
    wrapped = re.search(r"\(os error (\d+)\)", str(error))
    if isinstance(error, SafetensorError) and wrapped:
        number = int(wrapped[1])
    if number not in UNWRITABLE:
        return None
    step = UNWRITABLE[number]
    free = f"; {_free(path)}" if step is ROOM else ""
    if _temporary(path.absolute()):
        step = step.replace("with --runs-dir", "with the variable TMPDIR")
    return StorageError(
        f"{path} could not be written: {os.strerror(number)}{free}.", next_step=step
    )


def _temporary(path: Path) -> bool:
    """Whether a file lies in a temporary folder of ours, or of Python's."""
    temporary = Path(tempfile.gettempdir()).absolute()
    inside = path.is_relative_to(temporary) and path != temporary
    return inside and path.relative_to(temporary).parts[0].startswith(("fedre-", "tmp"))


def _free(path: Path) -> str:
    """How much room is left where a file would be."""
    try:
        place = next(parent for parent in path.absolute().parents if parent.is_dir())
        found = os.statvfs(place)
        free = f"{human_bytes(shutil.disk_usage(place).free)} are free in {place}"
    except (OSError, StopIteration):
        return "how much is free cannot be asked"
    if found.f_files and not found.f_favail:
        return f"{free}, but no more files can be made there (no inode is free)"
    return free


def os_error_message(error: BaseException) -> FedreError | None:
    """What to tell the user of any error by which the system refused something; else None."""
    if isinstance(error, FedreError):
        return error
    said = " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":  # of torch, which need not be loaded
        return OutOfMemoryError(
            f"The GPU is full: {str(error).partition(chr(10))[0]}",
            next_step=f"Free it, use --device cpu or a smaller train.batch_size, and {RESUME}",
        )
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _says(FULL, error):
        return OutOfMemoryError(
            f"The memory of this machine, or this process's share of it, is full"
            f"{f': {said}' * bool(said)}.".replace("..", "."),
            next_step="End other programs, raise the limit (ulimit -v), or use a smaller "
            f"train.batch_size or fewer targets, and {RESUME}",
        )
    if _says(NO_THREAD, error):
        number = errno.EAGAIN
    if number in TOO_MANY:
        what, shown = TOO_MANY[number]
        return StorageError(
            f"Too many {what}: {os.strerror(number)}.",
            next_step=f"Raise the limit ({shown}) or end what takes them, and {RESUME}",
        )
    if isinstance(error, FileNotFoundError) and not _has_place():
        return MissingInputError(
            "The working directory was removed.", next_step="Change to a folder that is there."
        )
    if isinstance(error, OSError) and number in UNWRITABLE:
        if number == errno.ENOSPC:
            return refusal(Path(error.filename or tempfile.gettempdir()), error)
        return StorageError(
            f"{error.filename or 'A file'} cannot be used: {error.strerror}.",
            next_step=UNWRITABLE[number],
        )
    return None


def _says(words: re.Pattern[str], error: BaseException) -> bool:
    """Whether an error of no type of its own says something in words."""
    return isinstance(error, RuntimeError) and words.search(str(error)) is not None


def _has_place() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def with_clear_errors(called: Callable[P, T]) -> Callable[P, T]:
    """The same function, which says what the system refuses as `os_error_message` does."""

    @functools.wraps(called)
    def calls(*args: P.args, **given: P.kwargs) -> T:
        try:
            return called(*args, **given)
        except Exception as error:
            refused = os_error_message(error)
            if refused is None or refused is error:
                raise
            raise refused from error

    return calls
