"""One process in a folder: who holds it, what a death leaves, and who waits."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedre_privacy.core.errors import InUseError, StorageError
from fedre_privacy.core.files import write_text
from fedre_privacy.core.host import HOST
from fedre_privacy.core.lock import (
    LEASE,
    LEASE_SECONDS,
    LOCK,
    STALE_SECONDS,
    is_held,
    is_leased,
    lease_folder,
    lock_folder,
    refuse_if_held,
    remove_left,
    remove_left_lease,
    remove_stale,
    remove_temporaries,
)

HOLDER = """
import sys, time
from pathlib import Path
from fedre_privacy.core.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """A process that holds a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_is_told_who_is_first(holder, tmp_path):
    for ask in (
        lambda: lock_folder(tmp_path / "run").__enter__(),
        lambda: refuse_if_held(tmp_path / "run"),
    ):
        with pytest.raises(InUseError) as refused:
            ask()
        said = str(refused.value)
        assert f"process {holder.pid} on {socket.gethostname()}, since 20" in said
        assert "--resume" in said and refused.value.exit_code == 4
    assert is_held(tmp_path / "run")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_death_releases(holder, tmp_path, how):
    holder.send_signal(how)
    holder.wait()
    folder = tmp_path / "run"
    assert (folder / LOCK).exists() and not is_held(folder)
    refuse_if_held(folder)
    with lock_folder(folder):
        assert is_held(folder)
    assert not folder.exists()  # nothing was put into it


def test_what_is_in_the_folder_stays(tmp_path):
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / "file").write_text("x")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


def test_threads_of_one_process_take_turns(tmp_path):
    with lock_folder(tmp_path), pytest.raises(InUseError, match=f"process {os.getpid()} "):
        lock_folder(tmp_path).__enter__()


def test_one_waits_until_the_other_has_ended(tmp_path):
    order: list[str] = []

    def second() -> None:
        with lock_folder(tmp_path / "run", wait=True):
            order.append("second")

    with lock_folder(tmp_path / "run"):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.5)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


@pytest.mark.slow
def test_many_processes_never_hold_together(tmp_path):
    count = """
import sys
from pathlib import Path
from fedre_privacy.core.lock import lock_folder
place = Path(sys.argv[1])
for _ in range(30):
    with lock_folder(place, wait=True):
        number = int((place / "n").read_text())
        (place / "n").write_text(str(number + 1))
"""
    (tmp_path / "n").write_text("0")
    command = [sys.executable, "-c", count, str(tmp_path)]
    several = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]
    assert (tmp_path / "n").read_text() == "90"


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="could not be written: Not a directory"):
        lock_folder(tmp_path / "file" / "run").__enter__()


@pytest.mark.parametrize("hold", [lock_folder, lease_folder])
def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path, monkeypatch, hold):
    calls, make = [], os.mkdir

    def mkdir(path, *rest, **named):
        calls.append(path)
        if len(calls) == 1:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return make(path, *rest, **named)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with hold(tmp_path / "run"):
        assert (tmp_path / "run").is_dir() and len(calls) > 1


@pytest.mark.parametrize("hold", [lock_folder, lease_folder])
@pytest.mark.parametrize("below", ["", "run"])
def test_something_else_in_the_place_of_a_folder_is_told(tmp_path, hold, below):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(StorageError, match=name):
            hold(tmp_path / name / below).__enter__()


def test_temporary_files_of_the_dead_go(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = [f".{dead.pid}.a.json", f".{os.getpid()}.b.json", ".hidden", "c.json"]
    places = [tmp_path, tmp_path / "uploads", tmp_path / "attacks" / "dip"]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            (place / name).write_text("x")
    remove_stale(tmp_path)
    assert (places[0] / names[0]).exists()  # too young to tell
    long_ago = time.time() - 2 * STALE_SECONDS
    for place in places:
        for name in names:
            os.utime(place / name, (long_ago, long_ago))
    remove_stale(tmp_path)
    assert not (places[0] / names[0]).exists() and not (places[1] / names[0]).exists()
    assert (places[0] / names[1]).exists()  # its process lives
    remove_temporaries(tmp_path)
    assert not (places[0] / names[1]).exists()
    assert all((place / name).exists() for place in places for name in names[2:])
    assert (places[2] / names[0]).exists()  # an attack is held by itself


def test_what_a_kill_at_the_very_end_left_goes(tmp_path):
    (tmp_path / LOCK).write_text("{}")
    (tmp_path / ".1.record.json").write_text("{}")
    write_text(tmp_path / "record.json", "{}")
    remove_left(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_files_of_other_machines_are_left_to_them(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    ours, theirs = f".{dead.pid}.{HOST}.a.json", f".{dead.pid}.{'0' * 8}.a.json"
    long_ago = time.time() - 2 * STALE_SECONDS
    for name in (ours, theirs):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (long_ago, long_ago))
    remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [theirs]


LEASED = """
import sys, time
from pathlib import Path
from fedre_privacy.core import lock
name, seconds = sys.argv[2], float(sys.argv[3])
if name:  # as if this process were on another machine
    for module in list(sys.modules.values()):
        if module.__name__.startswith("filelock") and hasattr(module, "host_name"):
            module.host_name = lambda: name
lock.LEASE_SECONDS = seconds
with lock.lease_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def lease(tmp_path: Path):
    """Start a process that holds a lease: on which machine, and its seconds."""
    started = []

    def start(machine: str = "", seconds: float = LEASE_SECONDS):
        words = [str(tmp_path / "job"), machine, str(seconds)]
        process = subprocess.Popen(
            [sys.executable, "-c", LEASED, *words], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_lease_of_a_killed_process_of_this_machine_is_taken_at_once(lease, tmp_path):
    process = lease()
    assert is_leased(tmp_path / "job")
    remove_left_lease(tmp_path / "job")
    assert (tmp_path / "job" / LEASE).exists()
    process.kill()
    process.wait()
    assert not is_leased(tmp_path / "job")
    with lease_folder(tmp_path / "job"):
        assert is_leased(tmp_path / "job")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_lease_of_another_machine_is_taken_when_nobody_touches_it(lease, tmp_path, monkeypatch):
    monkeypatch.setattr("fedre_privacy.core.lock.LEASE_SECONDS", 1.5)
    process = lease("node-b", 1.5)
    taken = threading.Event()

    def take() -> None:
        with lease_folder(tmp_path / "job"):
            taken.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    assert not taken.wait(3.0)  # it lives, and touches its lease
    process.kill()
    process.wait()
    killed = time.monotonic()
    assert taken.wait(20) and time.monotonic() - killed > 1.0
    waiting.join()


def test_who_lost_a_lease_is_told(lease, tmp_path, monkeypatch):
    monkeypatch.setattr("fedre_privacy.core.lock.LEASE_SECONDS", 1.0)
    lost = threading.Event()
    with lease_folder(tmp_path / "job", lost.set):
        (tmp_path / "job" / LEASE).unlink()
        assert lost.wait(10)


@pytest.mark.slow
def test_many_processes_never_hold_a_lease_together(tmp_path):
    count = """
import sys
from pathlib import Path
from fedre_privacy.core.lock import lease_folder
place = Path(sys.argv[1])
for _ in range(20):
    with lease_folder(place / "turn"):
        number = int((place / "n").read_text())
        (place / "n").write_text(str(number + 1))
"""
    (tmp_path / "n").write_text("0")
    command = [sys.executable, "-c", count, str(tmp_path)]
    several = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]
    assert (tmp_path / "n").read_text() == "60" and not (tmp_path / "turn").exists()
