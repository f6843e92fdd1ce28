"""A sandbox for the process of an attack, made by bubblewrap (`bwrap`), a package of Linux systems.

The process gets namespaces of its own (users, processes, mounts, network, IPC, host name), no
capability, and a file system that begins empty: Python and what it imports, the system's
libraries and the observation are mounted into it for reading, and a folder in memory for writing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64")
"""Programs and libraries; a link, as which most distributions have some of them, stays one."""

FACTS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/sys/devices/system/cpu")
"""What the loader of libraries, clocks and counters of cores read."""

SEEN, OWN = "/attack/seen", "/attack/own"
"""Where an attack finds the observation, and its own folder, which nobody else sees."""

NAMESPACES = (
    "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1",
    "--cap-drop", "ALL",
)  # fmt: skip

NESTED = "--disable-userns"
"""Forbids further namespaces of users inside; bubblewrap knows it from 0.8 on."""

PACKAGE = "Install the package bubblewrap (apt install bubblewrap, or your distribution's command)"

_KEYCTL, _JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1


def command(
    given: Sequence[str], roots: Iterable[Path], seen: Path | None, hidden: Sequence[Path] = ()
) -> list[str]:
    """The command that runs another one in a sandbox.

    Args:
        given: the command, as it is given there.
        roots: folders that it may read. seen: the one that it finds under `SEEN`.
        hidden: what lies in roots and must not be seen, as `hidden_paths` tells.
    """
    return [*_sandbox_command(_flags()), *_mounts(roots, seen, hidden), "--", *given]


@cache
def refusal() -> str:
    """Why there can be no sandbox here; empty where there can. Tried once, by making one."""
    if sys.platform != "linux":
        return "which is for Linux only"
    if shutil.which("bwrap") is None:
        return "which is not installed here"
    if _flags() or (done := _try_sandbox(())).returncode == 0:
        return ""
    said = done.stderr.decode(errors="replace").strip().splitlines() or [str(done.returncode)]
    return f"which does not work here ({said[-1]})"


def python() -> Iterator[Path]:
    """Folders of this Python, and the links that lead to it, one after another."""
    yield from (Path(sys.prefix), Path(sys.base_prefix))
    path = Path(sys.executable)
    while path.is_symlink():
        path = path.parent / os.readlink(path)
        yield path.parent.resolve() / path.name


def hidden_paths(roots: Iterable[Path], hidden: Iterable[Path]) -> list[Path]:
    """What of the hidden is there and in a folder that is shown; a folder stands for all in it."""
    places = [*map(Path, SYSTEM), *roots]
    there = {path.resolve() for path in hidden if path.exists()}
    found = [path for path in there if any(inside(path, one) for one in places)]
    return sorted(path for path in found if not any(one in path.parents for one in found))


def inside(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder."""
    return path.resolve().is_relative_to(folder.resolve())


def leave_keyring() -> None:
    """Give this process a keyring of its own: that of a login outlives what is left in it."""
    number = _KEYCTL.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


def _sandbox_command(flags: Sequence[str]) -> list[str]:
    return [str(shutil.which("bwrap")), *NAMESPACES, *flags]


@cache
def _flags() -> tuple[str, ...]:
    """Options that this version of bubblewrap knows beside `NAMESPACES`."""
    return (NESTED,) if _try_sandbox((NESTED,)).returncode == 0 else ()


def _try_sandbox(flags: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Make a sandbox in which this Python does nothing."""
    options = [*_sandbox_command(flags), *_mounts(python(), None, ())]
    return subprocess.run(
        [*options, "--", sys.executable, "-I", "-S", "-c", ""],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd="/",
    )


def _mounts(roots: Iterable[Path], seen: Path | None, hidden: Sequence[Path]) -> list[str]:
    out: list[str] = []
    for name in SYSTEM:
        if os.path.islink(name):
            out += ["--symlink", os.readlink(name), name]
    shown = {Path(name): Path(name) for name in SYSTEM if not os.path.islink(name)}
    for root in roots:
        shown[root.resolve()] = shown[root] = root.resolve()
    mounted: list[Path] = []
    for path in sorted({*shown, *hidden}, key=lambda path: (len(path.parts), path)):
        if path in hidden:  # after a root that it lies in, before one that lies in it
            if any(path.is_relative_to(root) for root in mounted):
                out += ["--ro-bind", "/dev/null", str(path)] if path.is_file() else []
                out += ["--tmpfs", str(path)] if path.is_dir() else []
                mounted = [root for root in mounted if root != path]
        elif path.exists() and len(path.parts) > 1 and not _visible(path, mounted, hidden):
            # a link to a folder stays one, so that what is covered in the folder is not seen by it
            how = "--ro-bind" if shown[path] == path else "--symlink"
            out += [how, str(shown[path]), str(path)]
            mounted.append(path)
    for fact in FACTS:
        out += ["--ro-bind-try", fact, fact]
    # /proc is mounted anew; for root its settings would be writable, capabilities or not
    out += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--tmpfs", OWN]
    out += ["--ro-bind", str(seen), SEEN] if seen is not None else []
    return [*out, "--chdir", OWN]


def _visible(path: Path, mounted: Sequence[Path], hidden: Iterable[Path]) -> bool:
    """Whether a path is in a folder that is mounted already, and not in a covered part of it."""
    roots = [root for root in mounted if path.is_relative_to(root)]
    covers = [one for one in hidden if path.is_relative_to(one)]
    deepest = max((len(one.parts) for one in covers), default=-1)
    return any(len(root.parts) > deepest for root in roots)
