"""What code in the sandbox can open, reach, change and leave behind."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.sandbox import bubblewrap as sandbox

HERE = Path(__file__).parent
PYTHON = shutil.which("python3", path="/usr/bin") or ""
"""One that any user may run."""

needs_sandbox = pytest.mark.skipif(
    bool(sandbox.refusal()), reason=f"no sandbox: bubblewrap, {sandbox.refusal()}"
)
pytestmark = needs_sandbox


@pytest.fixture
def told(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A file of the truth and servers that give it to whoever asks, as other programs could."""
    truth = tmp_path / "private" / "truth.txt"
    truth.parent.mkdir()
    truth.write_text("TRUTH")
    names = {"unix": str(tmp_path / "socket"), "abstract": f"\0fedre-{uuid.uuid4()}"}
    ends = [socket.socket(socket.AF_UNIX) for _ in names]
    for end, name in zip(ends, names.values(), strict=True):
        end.bind(name)
    ends += [socket.create_server(("127.0.0.1", 0))]
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))

    def serve(end: socket.socket) -> None:
        while True:
            try:
                other, _ = end.accept()
                with other:
                    other.recv(100)
                    other.sendall(b"TRUTH")
            except OSError:
                return

    def answer() -> None:
        while True:
            try:
                udp.sendto(b"TRUTH", udp.recvfrom(100)[1])
            except OSError:
                return

    for end in ends:
        end.listen()
        threading.Thread(target=serve, args=(end,), daemon=True).start()
    threading.Thread(target=answer, daemon=True).start()
    victim = subprocess.Popen(["/usr/bin/sleep", "1000"], start_new_session=True)
    yield {
        **names,
        "port": ends[-1].getsockname()[1],
        "udp": udp.getsockname()[1],
        "truth": str(truth),
        "pid": victim.pid,
        "nested": sandbox.NESTED in sandbox.command([], [], None),
        "outside": False,
    }
    victim.kill()
    victim.wait()
    for end in (*ends, udp):
        end.close()


def tried(told: dict[str, Any], folder: Path, user: int | None = None, **env: str) -> Any:
    """What the probes got in a sandbox, as this user or another one."""
    seen = folder / "seen"
    if not seen.exists():
        seen.mkdir()
        shutil.copy(HERE / "probes.py", seen)
        shutil.copy(str(sandbox.__file__), seen / "sandbox.py")
    inside = [PYTHON, f"{sandbox.SEEN}/probes.py", json.dumps(told)]
    done = subprocess.run(
        sandbox.command(inside, [], seen),
        user=user,
        cwd="/",
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not PYTHON, reason="no Python in /usr/bin")
@pytest.mark.parametrize("user", [None, 65534], ids=["this user", "nobody"])
def test_nothing_outside_can_be_opened_reached_or_changed(told, tmp_path, user):
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if user is not None:  # every folder above must let nobody pass, and the truth must be theirs
        for place in (tmp_path, *tmp_path.parents[:3]):
            place.chmod(place.stat().st_mode | 0o055)
        for place in (told["truth"], told["unix"]):
            os.chown(place, user, user)
    before = os.stat(told["truth"])
    limits = os.sched_getaffinity(told["pid"]), os.getpriority(os.PRIO_PROCESS, told["pid"])
    found = tried(told, tmp_path, user)
    assert found == {"capabilities": "0" * 16}
    assert os.stat(told["truth"]) == before and os.listxattr(told["truth"]) == []
    assert limits == (
        os.sched_getaffinity(told["pid"]), os.getpriority(os.PRIO_PROCESS, told["pid"])
    )  # fmt: skip


def test_the_probes_do_find_what_is_open(told, tmp_path):
    """Without a sandbox they get what they ask for."""
    command = [sys.executable, str(HERE / "probes.py"), json.dumps({**told, "outside": True})]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert {
        "unix socket by path", "abstract unix socket", "tcp", "udp", "read", "status", "list",
        "chmod", "utime", "watch", "kill", "prlimit", "environ", "passwords", "processes",
    } <= set(found)  # fmt: skip
    assert found["unix socket by path"] == found["tcp"] == found["udp"] == "'TRUTH'"


def test_nothing_survives_an_attack(told, tmp_path):
    """Neither memory nor semaphores nor a process that nobody waits for."""
    mark = f"98765.{os.getpid()}"
    first = tried({**told, "leave": True}, tmp_path, MARK=mark)
    assert first["daemon"] == "left"
    second = tried(told, tmp_path)
    assert not {"shared memory", "semaphores", "keyring"} & set(second)
    library = ctypes.CDLL(None)
    assert library.shmget(0xFED0, 4096, 0) == library.semget(0xFED0, 1, 0) == -1
    for _ in range(100):
        if not _running(mark):
            return
        time.sleep(0.05)
    raise AssertionError("a process outlived its attack")


def _running(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_text().split("\0"):
                return True
        except OSError:
            continue
    return False


def test_a_sandbox_shows_its_roots_around_what_is_hidden(tmp_path):
    root = tmp_path.resolve() / "root"
    for name in ("runs/one", "code", "runs/venv"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text(name)
    (root / "data.npz").write_text("private")
    (tmp_path / "link").symlink_to(root)
    hidden = [root / "runs", root / "data.npz", root / "none"]
    data, kept = str(root / "data.npz"), str(root / "code" / "file")
    code = (
        f"import os; found = os.walk({str(tmp_path)!r})\n"
        "files = sorted(os.path.join(place, name) for place, _, names in found for name in names)\n"
        f"print(files, os.access({kept!r}, os.R_OK))\n"
        f"try: print(open({data!r}).read(), 'open')\n"
        "except PermissionError: pass"
    )

    def found(*roots: Path, seen: Path | None = None) -> str:
        inside = [PYTHON, "-c", code]
        command = sandbox.command(inside, roots, seen, sandbox.hidden_paths(roots, hidden))
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    files = [kept, data]
    assert found(root) == f"{files} True"
    assert found(tmp_path / "link") == f"{files} True"
    assert found(root, root / "runs" / "venv") == f"{[*files, str(root / 'runs/venv/file')]} True"
    hidden += [root / "runs" / "one"]
    assert sandbox.hidden_paths([tmp_path / "link"], hidden) == [root / "data.npz", root / "runs"]
    assert sandbox.hidden_paths([root / "code"], hidden) == []


def test_what_does_not_work_is_said(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "not installed" in sandbox.refusal.__wrapped__()
    monkeypatch.setattr(sandbox, "_flags", tuple)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    assert "does not work here (1)" in sandbox.refusal.__wrapped__()
