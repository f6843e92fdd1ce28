"""Disks that are full, read-only or broken, and two processes on one folder: said, and resumed."""

import contextlib
import errno
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.core import files

pytestmark = pytest.mark.slow

APART = {"record.json", "metrics.csv", "log.txt", "manifest.json"}
"""Files that hold times."""


def recorded(folder: Path) -> dict[str, bytes]:
    """What training wrote, but for times and figures."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in APART and "attacks" not in path.parts
    }


@contextlib.contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small file system; tests that need one are skipped where that is not allowed."""
    made: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / "disk"
        remount = place in made
        place.mkdir(exist_ok=True)
        options = f"remount,{options}" if remount else options
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(place)], capture_output=True
        )
        if done.returncode:
            pytest.skip("mounting is not allowed here")
        made.append(place)
        return place

    yield mount
    if made:
        subprocess.run(["umount", "-l", str(made[0])], check=True)


@pytest.mark.slow
def test_a_file_that_may_not_grow(
    cli: Any, run: Path, tiny: list[str], tmp_path: Path, read_json: Callable[[Path], Any]
) -> None:
    place = tmp_path / "runs"
    with small_files(60_000):
        done = cli.train(*tiny, "--runs-dir", place)
    assert done.code == 4 and "bug" not in done.err
    first, second = done.err.splitlines()
    assert "could not be written: File too large; " in first and " are free in " in first
    assert "--resume; what was finished is kept." in second
    assert read_json(place / run.name / "record.json")["status"] == "failed"
    again = cli.train(*tiny, "--runs-dir", place, "--resume")
    assert again.code == 0, again.err
    whole, found = recorded(run), recorded(place / run.name)
    assert {name: found[name] for name in whole} == whole


def test_a_record_that_will_not_fit_is_refused(
    cli: Any, run: Path, tiny: list[str], disk: Callable[[str], Path]
) -> None:
    place = disk("size=400k")
    done = cli.train(*tiny, "--runs-dir", place)
    assert done.code == 4 and "record of 3 rounds will take about" in done.err
    assert "400.0 KiB are free" in done.err and "--set record.rounds=[1,3]" in done.err
    assert not any(place.iterdir())
    dry = cli.train(*tiny, "--runs-dir", place, "--dry-run")
    assert dry.code == 4 and "are free in" in dry.err
    disk("size=100m")
    assert cli.train(*tiny, "--runs-dir", place).code == 0
    assert recorded(place / run.name) == recorded(run)


@pytest.mark.slow
def test_a_full_disk(
    cli: Any,
    run: Path,
    tiny: list[str],
    disk: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # somebody else fills it after the training has begun
    monkeypatch.setattr("fedre_privacy.runs.training.refuse_full", lambda *_: None)
    for size in (30, 100, 200, 400):
        place = disk(f"size={size}k")
        done = cli.train(*tiny, "--runs-dir", place, *(["--resume"] if size > 30 else []))
        assert done.code == 4, done.out
        assert "could not be written: No space left on device; " in done.err
        assert len(done.err.splitlines()) == 2 and "bug" not in done.err
    disk("size=100m")
    again = cli.train(*tiny, "--runs-dir", place, "--resume")
    assert again.code == 0, again.err
    whole, found = recorded(run), recorded(place / run.name)
    assert {name: found[name] for name in whole} == whole
    assert not [path for path in place.rglob("*") if path.name.startswith(".")]


@pytest.mark.slow
def test_a_full_disk_in_an_attack(
    cli: Any, copy: Path, fast: list[str], disk: Callable[[str], Path]
) -> None:
    size = sum(path.stat().st_size for path in copy.rglob("*") if path.is_file()) // 1024
    place = disk(f"size={size + 2000}k")
    subprocess.run(["cp", "-r", str(copy), str(place)], check=True)
    with (place / "ballast").open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while True:
            handle.write(b"x" * 1024)
    done = cli.attack(place / copy.name, *fast)
    assert done.code == 4 and "could not be written: No space left" in done.err, done.err
    (place / "ballast").unlink()
    again = cli.attack(place / copy.name, *fast, "--resume")
    assert again.code == 0, again.err
    assert again.table == cli.attack(copy, *fast).table


def test_a_disk_that_cannot_be_written_is_read(
    cli: Any, copy: Path, fast: list[str], disk: Callable[[str], Path]
) -> None:
    place = disk("size=100m")
    assert cli.attack(copy, *fast).code == 0
    subprocess.run(["cp", "-r", str(copy), str(place)], check=True)
    disk("ro,size=100m")
    folder = place / copy.name
    assert cli.attack(folder, *fast).code == 0  # read back
    assert cli.attack("verify", folder).code == 0
    done = cli.attack(folder, *fast, "--set", "attack.steps=3")
    assert done.code == 4 and "could not be written: Read-only file system." in done.err
    assert "Make it writable, or choose another folder" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_late(
    cli: Any, run: Path, tiny: list[str], tmp_path: Path, monkeypatch: Any, number: int
) -> None:
    real, left = os.fsync, [8]

    def failing(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", failing)
        done = cli.train(*tiny, "--runs-dir", tmp_path)
    assert done.code == 4 and os.strerror(number) in done.err and "--resume" in done.err
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
    again = cli.train(*tiny, "--runs-dir", tmp_path, "--resume")
    assert again.code == 0, again.err
    whole, found = recorded(run), recorded(tmp_path / run.name)
    assert {name: found[name] for name in whole} == whole


@pytest.mark.slow
def test_standard_output_on_a_full_disk(cli: Any, run: Path) -> None:
    with open("/dev/full", "w") as full:
        process = cli.start("attack", "list", stdout=full)
        err = process.communicate(timeout=300)[1]
    assert process.returncode == 4 and "No space left on device" in err and "bug" not in err


def until(met: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 300
    while not met():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_two_trainings_of_one_run(cli: Any, tiny: list[str], tmp_path: Path) -> None:
    options = [*tiny, "--rounds", "5000", "--runs-dir", tmp_path]
    first = cli.start("train", *options)
    try:
        until(lambda: list(tmp_path.glob("*/metrics.csv")), first)
        for more in ([], ["--resume"], ["--restart"]):
            second = cli.train(*options, *more)
            assert second.code == 4, second.err
            assert f"is in use by process {first.pid} on " in second.err
            assert first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    done = cli.train(*options)
    assert done.code == 2 and "was started before and is partial" in done.err
