"""Walls around an attack's process: Landlock, which Linux has from 5.13 on.

A process that raised them, and all it starts, can open the files it was allowed and no others,
whoever owns them; it cannot look into other processes, nor open network connections. No rights
are needed to raise them and nothing takes them down.

Reference: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Rights on files that each version of the interface knows; 16 from version 5 on."""

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
FACTS = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system/cpu")


class _Ruleset(ctypes.Structure):
    _fields_ = [
        ("fs", ctypes.c_uint64),
        ("net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("access", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def _call(number: int, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    done = int(library.syscall(number, *arguments))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def version() -> int:
    """Version of Landlock that this system offers; 0 where it has none."""
    if sys.platform != "linux":
        return 0
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError:
        return 0


def readable(roots: Iterable[Path], hidden: Sequence[Path]) -> list[Path]:
    """The folders and files under `roots` that may be read without showing anything `hidden`.

    A root that holds something hidden is replaced by those of its entries that do not, and so on.
    """
    out: list[Path] = []
    hidden = [path.resolve() for path in hidden]

    def look(path: Path) -> None:
        if any(path == other or other in path.parents for other in hidden):
            return
        if any(path in other.parents for other in hidden):
            for entry in sorted(path.iterdir()):
                if not entry.is_symlink():
                    look(entry)
            return
        out.append(path)

    for root in dict.fromkeys(path.resolve() for path in roots if path.exists()):
        if not any(root == kept or kept in root.parents for kept in out):
            look(root)
    return out


def raise_walls(read: Iterable[str], write: Iterable[str]) -> None:
    """Confine this process for good.

    Args:
        read: folders and files that stay readable. write: that stay writable too.

    Raises:
        OSError: the system has no Landlock.
    """
    offered = version()
    if not offered:
        raise OSError(errno.ENOSYS, "no Landlock")
    rights = (1 << _FS_BITS.get(offered, 16)) - 1
    rules = _Ruleset(rights, 3 if offered >= 4 else 0, 3 if offered >= 6 else 0)
    size = 8 if offered < 4 else 16 if offered < 6 else 24
    ruleset = _call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    for paths, access in ((read, _READ), (write, rights), (DEVICES, _READ | _WRITE_FILE)):
        for path in paths:
            _allow(ruleset, path, access & rights)
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = access if os.path.isdir(path) else access & _OF_FILES
        rule = _Beneath(allowed, handle)
        _call(
            _ADD, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule),
            ctypes.c_uint32(0),
        )  # fmt: skip
    finally:
        os.close(handle)
