"""The process of one attack: begun early, since it imports torch, and ended with all it started."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from fedre_privacy.core.errors import DamagedInputError, FedreError
from fedre_privacy.core.lock import LOCK, is_old, lock_folder
from fedre_privacy.core.safe_text import visible

from . import bubblewrap as sandbox
from .channel import Line

KEPT_VARIABLES = re.compile(
    r"(PATH|PYTHONPATH|PYTHONHASHSEED|LANG|LC_\w+|TZ|LD_LIBRARY_PATH|(OMP|MKL|KMP|OPENBLAS|GOMP)_\w+)"
)
"""Environment variables that an attack's process is given."""

PREFIX = "fedre-attack-"
"""What names of temporary folders begin with."""

PRINTED_MOST = 1 << 16
"""Bytes that are kept of what an attack prints: the last ones."""

_ASKED = (
    "import json, site, sys; print(json.dumps([sys.path,"
    " site.getuserbase() if site.ENABLE_USER_SITE else '']))"
)


class OwnedFolder:
    """A temporary folder that a later process removes if this one is killed."""

    def __init__(self) -> None:
        _remove_left()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        self._held = lock_folder(self.path)
        self._held.__enter__()

    def remove(self) -> None:
        """Remove it with all that is in it, as far as that can be removed."""
        _remove(self.path)
        self._held.__exit__(None, None, None)


def _remove_left() -> None:
    """Remove temporary folders whose processes were killed.

    A new one is left alone: who has just made it may not hold its lock yet.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(FedreError, OSError):  # another process works in it
            about = folder.lstat()  # what another user put there could lead anywhere
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                if (folder / LOCK).is_file() and is_old(folder / LOCK):
                    with lock_folder(folder):
                        _remove(folder)


def _remove(folder: Path) -> None:
    with suppress(RecursionError):  # an attack without a sandbox may nest folders without end
        shutil.rmtree(folder, ignore_errors=True)


class AttackProcess:
    """A Python that has a folder and a line to this process, imports torch and awaits an attack.

    Args:
        strict: whether it runs in a sandbox.
        hidden: what it must not see there.
    """

    def __init__(self, *, strict: bool, hidden: Sequence[Path] = ()) -> None:
        self.strict = strict
        self._ended = False
        self._view = _view(hidden) if strict else None
        self._maker = (os.getpid(), threading.current_thread())
        self._folder = OwnedFolder()
        self.folder = self._folder.path / "seen"
        """Where the observation is written for it."""
        own = self._folder.path / "own"
        for folder in (self.folder, own):
            folder.mkdir(mode=0o700)
        self.place = sandbox.SEEN if strict else str(self.folder)
        """Where the process itself finds `folder`."""
        environment, _ = _python()
        place = sandbox.OWN if strict else str(own)
        mine, other = socket.socketpair()
        said, printed = os.pipe()
        command = [sys.executable, "-P", "-m", f"{__package__}.worker", str(other.fileno())]
        if self._view is not None:
            roots, covered = self._view
            command = sandbox.command(command, roots, self.folder, covered)
        try:
            self._process = subprocess.Popen(
                command,
                cwd="/" if strict else own,
                env={**environment, "HOME": place, "TMPDIR": place},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=[other.fileno()],
                umask=0o077,
                start_new_session=True,  # Ctrl-C is for the evaluator, which then ends it
            )
        except BaseException:
            mine.close()
            os.close(said)
            self._folder.remove()
            raise
        finally:
            other.close()
            os.close(printed)
        self.line = Line(mine)
        self._printed = bytearray()
        self._reader = threading.Thread(target=self._read_output, args=(said,), daemon=True)
        self._reader.start()

    def fits(self, *, strict: bool, hidden: Sequence[Path]) -> bool:
        """Whether it can be taken for an attack, by the thread that asks.

        A sandbox ends with the thread that made it.
        """
        ours = self._maker == (os.getpid(), threading.current_thread())
        view = _view(hidden) if strict else None
        return ours and self._view == view and self._process.poll() is None

    def await_ready(self) -> None:
        """Wait until it has imported what every attack needs.

        Raises:
            DamagedInputError: it ended before, with what it said.
        """
        if self.line.receive() is None:
            self._reader.join(1)
            raise DamagedInputError(
                f"The process that attacks run in did not start: {self.printed()[-500:].strip()}",
                next_step="Use --isolation process; if that ends so too, --isolation same-process.",
            )

    def peak_bytes(self) -> int:
        """Most memory that it has held so far, as Linux tells; 0 where nobody does."""
        with suppress(OSError, ValueError, IndexError):
            pid = str(self._process.pid)
            if self.strict:  # that is bubblewrap, which waits for the process
                pid = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            status = Path(f"/proc/{pid}/status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) * 1024
        return 0

    def printed(self) -> str:
        """The last of what it printed, without what would steer a terminal."""
        return visible(self._printed.decode(errors="replace"))

    def end(self) -> None:
        """Hang up, end it with all it started there, and remove its folder."""
        if self._ended or self._maker[0] != os.getpid():
            return
        self._ended = True
        self.line.close()
        self._process.kill()
        self._process.wait()
        self._reader.join(1)  # what an attack without a sandbox started may keep the pipe open
        self._folder.remove()

    def _read_output(self, said: int) -> None:
        with open(said, "rb", buffering=0) as pipe:
            while part := pipe.read(PRINTED_MOST):
                self._printed += part
                del self._printed[:-PRINTED_MOST]


_spare: AttackProcess | None = None
_lock = threading.RLock()


def begin(*, strict: bool, hidden: Sequence[Path]) -> None:
    """Begin the process of the next attack, so that it is ready when that comes."""
    global _spare
    with _lock:
        _spare = take(strict=strict, hidden=hidden)


def take(*, strict: bool, hidden: Sequence[Path]) -> AttackProcess:
    """The process for one attack: the one that was begun, or a new one."""
    global _spare
    with _lock:
        one, _spare = _spare, None
        if one is not None and one.fits(strict=strict, hidden=hidden):
            return one
        if one is not None:
            one.end()
        return AttackProcess(strict=strict, hidden=hidden)


def drop() -> None:
    """End the process that was begun for an attack which does not come."""
    global _spare
    with _lock:
        one, _spare = _spare, None
    if one is not None:
        one.end()


def import_folders() -> list[Path]:
    """Folders from which an attack's process imports, without working directories."""
    return [path.resolve() for path in _python()[1]]


def _view(hidden: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Folders that an attack may read, and what of them it may not.

    A folder in a hidden one is left out, but for those of Python.
    """
    needed = [*_package(), *sandbox.python()]
    others = [root for root in _python()[1] if not any(sandbox.inside(root, h) for h in hidden)]
    return needed + others, sandbox.hidden_paths([*needed, *others], hidden)


def _python() -> tuple[dict[str, str], list[Path]]:
    """Variables of an attack's process, and the folders that it needs to import."""
    kept = {k: v for k, v in os.environ.items() if KEPT_VARIABLES.fullmatch(k)}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):  # it starts in another folder
        if name in kept:
            given = [path for path in kept[name].split(os.pathsep) if path]
            kept[name] = os.pathsep.join(map(os.path.abspath, given))
    base, roots = _roots(tuple(sorted(kept.items())))
    return {**kept, **({"PYTHONUSERBASE": base} if base else {})}, list(roots)


@cache
def _roots(variables: tuple[tuple[str, str], ...]) -> tuple[str, tuple[Path, ...]]:
    """Base folder of a user's own packages, and where a Python with these variables finds code."""
    kept = dict(variables)
    home = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}
    asked = [sys.executable, "-P", "-c", _ASKED]
    done = subprocess.run(asked, cwd="/", env={**kept, **home}, stdout=subprocess.PIPE, check=True)
    path, user = json.loads(done.stdout)
    libraries = kept.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    found = [*_package(), *sandbox.python(), *map(Path, (*path, *libraries))]
    return user, tuple(one for one in dict.fromkeys(found) if one.is_absolute())


def _package() -> list[Path]:
    """Folders of this package, wherever each of them lies, and where links to them lead."""
    from importlib.util import find_spec

    package = Path(__file__).parents[1]
    name = __package__.partition(".")[0]
    found = (find_spec(f"{name}.{room}") for room in ("attacks", "defenses", "eval"))
    beside = [Path(str(spec.origin)).parent for spec in found if spec is not None]
    linked = [Path(__file__).resolve().parents[1], *(place.resolve() for place in beside)]
    return list(dict.fromkeys([package, *beside, *linked]))


atexit.register(drop)
