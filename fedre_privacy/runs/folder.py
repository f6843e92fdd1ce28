"""What lies in a folder of work, how it is begun, taken up again, held and ended."""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TypedDict

import torch
from msgspec import Meta

from fedre_privacy import __version__
from fedre_privacy.core import files, lock
from fedre_privacy.core.errors import ConfigError, DamagedInputError, FedreError, StorageError
from fedre_privacy.core.os_errors import file_write_errors
from fedre_privacy.core.typed_yaml import Hash, Word

log = logging.getLogger("fedre_privacy")
log.propagate = False
log.addHandler(logging.NullHandler())

COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"
Status = Annotated[str, Meta(pattern="^(complete|partial|failed)$")]


class BegunRecord(TypedDict, total=False):
    """What the records of trainings and of attacks begin with."""

    status: Status
    started: Word
    device: Word
    versions: dict[Word, Word]
    data_sha256: Hash


def versions() -> dict[str, str]:
    """Versions that can change numbers."""
    out = {"fedre-privacy": __version__, "python": platform.python_version()}
    for package in ("torch", "torchvision", "numpy", "scikit-image", "scikit-learn"):
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            out[package] = "absent"
    return out


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({torch.get_num_threads()} threads, {platform.machine()})"


def status_of(folder: Path) -> str | None:
    """``complete``, ``partial`` or ``failed``; None where nothing was begun."""
    path = folder / "record.json"
    if not path.is_file():
        begun = folder.is_dir() and any(path.name != lock.LOCK for path in folder.iterdir())
        return PARTIAL if begun else None
    return files.read_json(path, BegunRecord).get("status", PARTIAL)


def begin(folder: Path, *, resume: bool, restart: bool, what: str, wait: bool = False) -> bool:
    """Decide what happens to a folder that may exist; return True when it is already complete.

    Nothing is changed yet: see `claim_folder`.

    Args:
        wait: refuse nothing that another process may still complete.

    Raises:
        ConfigError: it holds an unfinished piece of work and neither option was given.
        InUseError: another process works in it.
    """
    if not restart and status_of(folder) == COMPLETE:
        lock.remove_left(folder)
        return True
    if wait:
        return False
    lock.refuse_if_held(folder)
    return _is_finished(folder, resume=resume, restart=restart, what=what)


@contextmanager
def claim_folder(
    folder: Path, *, resume: bool, restart: bool, what: str, wait: bool = False
) -> Iterator[bool]:
    """Hold a folder for work, and free it of what is not needed any more.

    Yields:
        Whether another process completed it in the meantime.

    Args:
        wait: wait for another process that works in it, and take up what that left.

    Raises:
        ConfigError, InUseError: as `begin`.
    """
    with lock.lock_folder(folder, wait=wait):
        resume = resume or (wait and status_of(folder) is not None)
        finished = _is_finished(folder, resume=resume, restart=restart, what=what)
        if not finished:
            if restart:
                _empty(folder)
            lock.remove_temporaries(folder)
        yield finished


def _empty(folder: Path) -> None:
    """Remove what is in a folder, but for its lock: first the record, which calls it complete."""
    with file_write_errors(folder):
        (folder / "record.json").unlink(missing_ok=True)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != lock.LOCK:
                path.unlink()


def _is_finished(folder: Path, *, resume: bool, restart: bool, what: str) -> bool:
    status = None if restart else status_of(folder)
    if status == COMPLETE:
        return True
    if status is not None and not resume:
        raise ConfigError(
            f"{what} {folder} was started before and is {status}.",
            next_step="Add --resume to go on from where it stopped, or --restart to begin anew.",
        )
    if status is None and resume and not restart and folder.parent.is_dir():
        kin = sorted(folder.parent.glob(f"{folder.name.rsplit('-', 1)[0]}-*"))
        others = [path.name for path in kin if status_of(path) in (PARTIAL, FAILED)]
        if others:
            raise ConfigError(
                f"--resume found no unfinished {folder.name} with these settings; unfinished with "
                f"other settings: {', '.join(others)}.",
                next_step=f"Use the settings in {folder.parent / others[0] / 'config.yaml'} "
                "(--config), or leave --resume out to start a new one.",
            )
    return False


class _LogFile(logging.FileHandler):
    """A log that ends no work and prints nothing where the disk is full or cannot be written."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Append what happens in a block, and the traceback of what ends it, to ``log.txt``.

    Nothing is written when the block ends before the folder was made.

    Raises:
        DamagedInputError: the log is a link, a pipe or a device.
    """
    path = folder / "log.txt"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise DamagedInputError(f"{path} is no plain file.", next_step="Remove it.")
    handler = _LogFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    except Exception:
        if folder.is_dir():
            log.exception("stopped")
        raise
    finally:
        log.removeHandler(handler)
        with suppress(OSError):
            handler.close()


def write_end(folder: Path, record: dict[str, Any], error: BaseException) -> None:
    """Note in ``record.json`` how work ended that did not finish, if the disk lets us."""
    record["status"] = PARTIAL if isinstance(error, KeyboardInterrupt) else FAILED
    record["failure"] = str(error) if isinstance(error, FedreError) else repr(error)
    with suppress(StorageError):
        files.write_json(folder / "record.json", record)
