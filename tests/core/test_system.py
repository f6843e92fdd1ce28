"""What the system refuses is one clear error, whoever raised it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import fedre_privacy as fp
from fedre_privacy.core import files
from fedre_privacy.core import os_errors as system
from fedre_privacy.core.errors import (
    ConfigError,
    FedreError,
    MissingInputError,
    OutOfMemoryError,
    StorageError,
)
from fedre_privacy.core.os_errors import os_error_message, refusal, with_clear_errors


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (MemoryError(), OutOfMemoryError, "memory"),
        (MemoryError("Unable to allocate 3 GiB"), OutOfMemoryError, "Unable to allocate 3 GiB."),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
         OutOfMemoryError, "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), OutOfMemoryError, "memory"),
        (OSError(errno.EMFILE, "Too many open files"), StorageError, "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), StorageError,
         "ulimit -u"),
        (RuntimeError("can't start new thread"), StorageError, "ulimit -u"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 260), StorageError, "too long"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), StorageError, "Make it writ"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), StorageError, "free in"),
        (ConfigError("as it was"), ConfigError, "as it was"),
    ],
)  # fmt: skip
def test_what_is_told(error, kind, words):
    found = os_error_message(error)
    assert type(found) is kind and words in str(found)
    assert isinstance(error, FedreError) or found.next_step


@pytest.mark.parametrize(
    "error", [RuntimeError("odd"), ValueError(), FileNotFoundError(2, "x", "y")]
)
def test_what_is_no_refusal_of_the_system_stays(error):
    assert os_error_message(error) is None
    with pytest.raises(type(error)):
        with_clear_errors(lambda: (_ for _ in ()).throw(error).__next__())()


def test_a_removed_working_directory(tmp_path, monkeypatch):
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        os.getcwd()
    found = os_error_message(caught.value)
    assert type(found) is MissingInputError and "working directory was removed" in str(found)


def test_a_full_folder_for_temporary_files_is_named_as_such(monkeypatch, tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    said = str(refusal(tmp_path / "tmp" / "fedre-attack-x" / "observation.safetensors", full))
    assert "with the variable TMPDIR" in said and "--runs-dir" not in said
    assert "--runs-dir" in str(refusal(tmp_path / "runs" / "x", full))


def test_no_inode_left(monkeypatch, tmp_path):
    real = os.statvfs(tmp_path)
    none = os.statvfs_result([*real[:5], 100, 0, 0, *real[8:10]])
    monkeypatch.setattr(system.os, "statvfs", lambda _: none)
    said = str(refusal(tmp_path / "x", OSError(errno.ENOSPC, "No space left on device")))
    assert "no inode is free" in said


def test_the_functions_of_the_package_say_it_too(tmp_path):
    with pytest.raises(StorageError, match="too long"):
        fp.train("fedgh", rounds=1, runs=tmp_path / ("x" * 260))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"):
        fp.train("fedgh", rounds=1, runs=tmp_path / "file" / "below")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(
    ("limit", "code", "words"),
    [("resource.RLIMIT_NOFILE, (40, 40)", 4, "Too many files are open"),
     ("resource.RLIMIT_FSIZE, (10, 10)", 4, "File too large")],
)  # fmt: skip
def test_a_command_under_a_limit(tmp_path, limit, code, words):
    code_ = (
        "import resource, sys, torch\n"
        "from fedre_privacy.cli import train\n"
        "import fedre_privacy.api\n"
        f"resource.setrlimit({limit})\n"
        "held = []\n"
        "try:\n"
        f"    while {'NOFILE' in limit}:\n"
        "        held.append(open('/dev/null'))\n"
        "except OSError:\n"
        "    held.pop()\n"
        "sys.exit(train.main(['--clients', '3', '--rounds', '1', '--set', 'data.per_class=6']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code_], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == code and words in done.stderr and "bug" not in done.stderr, (
        done.stderr
    )


def test_truth_is_for_its_owner_alone(tmp_path):
    files.write_text(tmp_path / "open" / "a", "x")
    with files.private():
        files.write_text(tmp_path / "shut" / "a", "x")
        files.write_text(tmp_path / "open" / "b", "x")
    files.write_text(tmp_path / "shut" / "b", "x")
    modes = {str(p.relative_to(tmp_path)): p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    umask = os.umask(0)
    os.umask(umask)
    plain = 0o666 & ~umask
    assert modes["shut"] == 0o700 and modes["open"] == 0o777 & ~umask
    assert modes["shut/a"] == modes["open/b"] == 0o600
    assert modes["open/a"] == modes["shut/b"] == plain


def test_a_file_without_an_end_is_not_read(tmp_path):
    endless = Path("/proc/kmsg")
    if not endless.exists():
        pytest.skip("no /proc here")
    link = tmp_path / "x.yaml"
    link.symlink_to(endless)
    try:
        assert files.read_text(link, 100) == ""
        with pytest.raises(OSError):
            files.file_sha256(link)
    except (FedreError, PermissionError):
        pass  # of another user
