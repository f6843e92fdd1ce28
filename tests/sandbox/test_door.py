"""What an attack's process may send, and what is made of anything else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.errors import (
    AttackFailedError,
    ConfigError,
    DamagedInputError,
    DivergedError,
    IncompatibleError,
)
from fedre_privacy.core.lock import LOCK, STALE_SECONDS
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.sandbox import bubblewrap as sandbox
from fedre_privacy.sandbox import client as door
from fedre_privacy.sandbox import process
from fedre_privacy.sandbox import worker as attacker
from fedre_privacy.sandbox.channel import BrokenLine, Line
from fedre_privacy.sandbox.client import (
    PROCESS,
    SAME,
    STRICT,
    choose_isolation,
    run_attack,
    strictest,
)
from fedre_privacy.sandbox.module_recipes import Modules
from fedre_privacy.threats.base import threats

needs_sandbox = pytest.mark.skipif(
    bool(sandbox.refusal()), reason=f"no sandbox: bubblewrap, {sandbox.refusal()}"
)
SHAPE = (1, 4, 4)
BEGIN = """
from dataclasses import dataclass
import json, os, torch
from fedre_privacy.attacks.base import Attack
from fedre_privacy.core.config import knob
from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.errors import DivergedError

@dataclass(frozen=True, kw_only=True)
class Plugin(Attack):
    consumes = (EntangledRep,)
    level: float = knob(0.5, help="grey")

    def answer(self, observation, **others):
        n = observation.image_count()
        images = torch.full((n, *observation.image_shape), self.level)
        values = dict(images=images, prior=images.clone(), fit=torch.zeros(n),
            trace=torch.ones(1, n), trace_steps=torch.zeros(1, dtype=torch.int64),
            stopped_because="done", diverged=torch.zeros(n, dtype=torch.bool))
        return Reconstruction(**{**values, **others})

    def run(self, observation, context):
        line = context.cache._line
"""


class ResultCache:
    """Keeps pieces in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, torch.Tensor]] = {}

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        return self.kept.get(name)

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        self.kept[name] = tensors


def observation() -> Observation:
    upload = Upload(0, 1, (EntangledRep(torch.ones(3), torch.full((2,), 0.5)),))
    return Observation(
        threats.get("eavesdropper"), (upload,), (upload,), (), Modules({}), SHAPE, 2,
        models=Modules({}),
    )  # fmt: skip


class ThreadProcess:
    """Does what an attack's process does in a thread, which takes no two seconds to begin."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, str(folder)
        folder.mkdir()
        mine, other = socket.socketpair()
        self.line = Line(mine)
        self.await_ready = self.line.receive

        def run() -> None:
            with suppress(OSError):
                attacker.attend(Line(other))

        threading.Thread(target=run, daemon=True).start()

    def peak_bytes(self) -> int:
        return 0

    def printed(self) -> str:
        return ""

    def end(self) -> None:
        self.line.close()


@pytest.fixture
def run_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Write a plugin whose `run` has these lines, and let it play; returns images and events."""
    name = f"plugin_{abs(hash(request.node.name)) % 10**8}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)

    def run(
        *lines: str,
        more: str = "",
        cache: ResultCache | None = None,
        isolation: str = PROCESS,
        **settings: float,
    ):
        body = "\n".join(f"        {line}" for line in lines)
        (tmp_path / f"{name}.py").write_text(f"{BEGIN}{body}\n{more}")
        module = __import__(name)
        events: list[str] = []
        context = Context(
            5, report=lambda event: events.append(event.name), cache=cache or ResultCache()
        )
        done = run_attack(
            module.Plugin(**settings),
            observation(),
            context,
            outcome=Reconstruction,
            isolation=isolation,
        )
        run.peak_bytes = done.peak_bytes  # type: ignore[attr-defined]
        return done.outcome, events

    return run


@pytest.fixture
def run_here(run_plugin, monkeypatch, tmp_path):
    """The same without a process."""
    monkeypatch.setattr(door, "take", lambda **how: ThreadProcess(tmp_path / "room"))
    return run_plugin


def test_settings_events_and_pieces_cross(run_plugin):
    cache = ResultCache()
    found, events = run_plugin(
        "from fedre_privacy.core.events import Event",
        "assert context.cache.load('tile-0') is None",
        "context.cache.save('tile-0', {'x': torch.arange(3)})",
        "assert context.cache.load('tile-0')['x'].tolist() == [0, 1, 2]",
        "context.report(Event('note', {'text': 'hello'}))",
        "context.report(Event('attack.reused', {}))",
        "return self.answer(observation, stopped_because=str(context.seed))",
        level=0.25,
        cache=cache,
    )
    assert float(found.images.mean()) == 0.25 and found.stopped_because == "5"
    assert events == ["note"] and list(cache.kept) == ["tile-0"]


def test_a_plugin_brings_its_own_modules_but_not_its_folder(run_plugin, tmp_path):
    (tmp_path / "beside_it.py").write_text("WORD = 'brought'\n")
    found, _ = run_plugin(
        "here = os.path.dirname(os.path.realpath(__file__))",
        "return self.answer(observation, stopped_because=beside_it.WORD + here)",
        more="import beside_it\n",
    )
    assert found.stopped_because.startswith("brought")
    assert str(tmp_path) not in found.stopped_because


@pytest.mark.parametrize(
    ("lines", "error", "words"),
    [
        (["raise ValueError('as it was')"], AttackFailedError, "failed: ValueError: as it was"),
        (["raise LookupError('odd')"], AttackFailedError, "failed: LookupError: odd"),
        (["raise SystemExit(0)"], AttackFailedError, "failed: SystemExit: 0"),
        (["raise MemoryError('full')"], MemoryError, "full"),
        (["line.send({'is': 'failed'})"], AttackFailedError, "failed: None: None"),
        (["line.send({'is': 'refused', 'type': 'Interrupted', 'problems': ['x']})"],
         AttackFailedError, "x"),
        (["raise DivergedError('lost', next_step='again')"], DivergedError, "lost\nagain"),
        (["context.cache.save('../up', {})"], IncompatibleError, "keeps a piece under"),
        (["context.cache.load('.hidden')"], IncompatibleError, "keeps a piece under"),
        (["line.send({'is': 'exec', 'code': 'x'})"], IncompatibleError, "unknown message 'exec'"),
        (["line._end.sendall(b'x' * 64)"], IncompatibleError, "no message"),
        (["line._end.sendall(bytes(3) + bytes([4]) + bytes(8) + b'nope')"], IncompatibleError,
         "no message"),
        (["line.send({'is': 'done', 'texts': {'a': 1}})"], IncompatibleError, "did not return"),
        (["line.send({'is': 'done', 'texts': {}})"], IncompatibleError, "did not return"),
        (["line.send({'is': 'refused', 'type': 'unknown', 'problems': 7, 'next_step': None})"],
         Exception, "7"),
        (["line._end.close()"], IncompatibleError, "ended without an answer"),
        (["return self.answer(observation, images=torch.full((1, 1, 4, 4), 2.0))"],
         IncompatibleError, "values are in"),
    ],
)  # fmt: skip
def test_what_is_not_an_answer_ends_in_one_error(run_here, lines, error, words):
    with pytest.raises(error, match="(?s)" + words.replace("(", r"\(")):
        run_here(*lines, "return self.answer(observation)")


def test_an_answer_is_checked_on_this_side_too(run_here):
    """A plugin can pass the checks in its own process by; those here it cannot."""
    with pytest.raises(IncompatibleError, match="returned 'images' of shape"):
        run_here(
            "made = self.answer(observation, images=torch.zeros(3, 1, 4, 4))",
            "tensors, texts = made.save()",
            "line.send({'is': 'done', 'texts': texts}, tensors)",
            "line.receive()",
        )


@pytest.mark.parametrize(
    ("most", "size", "words"), [(2, 1 << 34, "3 pieces"), (100, 99, "2 pieces of 100 B")]
)
def test_what_is_kept_has_an_end(run_here, monkeypatch, most, size, words):
    monkeypatch.setattr(door, "PIECES_MOST", most)
    monkeypatch.setattr(door, "PIECES_BYTES_MOST", size)
    cache = ResultCache()
    with pytest.raises(IncompatibleError, match=words):
        run_here(
            "for n in range(9): context.cache.save(f'a-{n}', {'x': torch.zeros(50).byte()})",
            "return self.answer(observation)",
            cache=cache,
        )
    assert 1 <= len(cache.kept) <= 2


@pytest.mark.parametrize("isolation", [PROCESS, pytest.param(STRICT, marks=needs_sandbox)])
def test_an_attack_is_measured_and_heard_from_outside(run_plugin, capsys, tmp_path, isolation):
    """It prints too much, puts a link where it might be read, and dies of a signal at last."""
    (tmp_path / "truth").write_text("TRUTH")
    run_plugin(
        f"os.symlink({str(tmp_path / 'truth')!r}, 'output.txt')",
        "large = torch.ones(100_000_000).sum()",
        "print('word ' * 100_000)",
        r"print('hello from inside \x1b[2J', os.getcwd() == os.environ['HOME'], flush=True)",
        "return self.answer(observation)",
        isolation=isolation,
    )
    said = capsys.readouterr().err
    assert said.endswith("hello from inside \\x1b[2J True\n")
    assert len(said) <= process.PRINTED_MOST + 10 and "TRUTH" not in said
    assert 5e8 < run_plugin.peak_bytes < 2e9


@pytest.mark.parametrize("isolation", [PROCESS, pytest.param(STRICT, marks=needs_sandbox)])
def test_an_attack_that_exits_is_said_with_its_last_words(run_plugin, isolation):
    with pytest.raises(IncompatibleError, match="ended without an answer: the last word"):
        run_plugin("print('the last word', flush=True)", "os._exit(3)", isolation=isolation)


def test_a_process_that_does_not_start_is_said(run_plugin, monkeypatch):
    monkeypatch.setattr(process, "__package__", "no_such_package")
    with pytest.raises(DamagedInputError, match=r"(?s)did not start.*no_such_package.*isolation"):
        run_plugin("return self.answer(observation)")


@needs_sandbox
def test_a_process_that_was_begun_is_taken_if_it_fits(tmp_path, monkeypatch):
    data = Path(torch.__file__).parent / "include"
    process.begin(strict=True, hidden=[data])
    begun = process._spare
    assert begun is not None and begun.fits(strict=True, hidden=[data, tmp_path, data / "ATen"])
    assert not begun.fits(strict=True, hidden=[])
    assert not begun.fits(strict=False, hidden=[])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    assert process._view([tmp_path]) != process._view([])
    monkeypatch.delenv("PYTHONPATH")
    other: list[bool] = []
    thread = threading.Thread(target=lambda: other.append(begun.fits(strict=True, hidden=[data])))
    thread.start()
    thread.join()
    assert other == [False]
    process.begin(strict=True, hidden=[data])
    assert process._spare is begun
    assert process.take(strict=True, hidden=[data]) is begun
    begun.end()
    assert process._spare is None and not begun.folder.exists()


def test_an_interrupted_attack_leaves_no_process(run_plugin):
    """Nor a folder."""

    class Stop(Exception):
        pass

    class Stopping(ResultCache):
        def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
            self.pid = int(tensors["pid"])
            raise Stop

    cache = Stopping()
    with pytest.raises(Stop):
        run_plugin(
            "context.cache.save('a', {'pid': torch.tensor(os.getpid())})",
            "import time; time.sleep(600)",
            cache=cache,
        )
    for _ in range(100):
        try:
            os.kill(cache.pid, 0)
        except ProcessLookupError:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the process is still there")


def test_where_an_attack_runs(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert choose_isolation("auto", gpu) == SAME
    for asked in (STRICT, PROCESS):
        with pytest.raises(ConfigError, match="--device cpu"):
            choose_isolation(asked, gpu)
    monkeypatch.setattr(door, "strictest", strictest)
    monkeypatch.setattr(sandbox, "refusal", lambda: "")
    assert choose_isolation("auto", cpu) == STRICT
    monkeypatch.setattr(sandbox, "refusal", lambda: "which is not installed here")
    assert choose_isolation("auto", cpu) == PROCESS
    with pytest.raises(ConfigError, match="(?s)bubblewrap, which.*apt install.*isolation process"):
        choose_isolation(STRICT, cpu)
    with pytest.raises(ConfigError, match="Did you mean 'strict'"):
        choose_isolation("strickt", cpu)


def test_a_line_carries_texts_and_tensors():
    one, other = (Line(end) for end in socket.socketpair())
    one.send({"a": [1, None, "x"]}, {"t": torch.arange(6).reshape(2, 3)[:, 1]})
    head, tensors = other.receive()
    assert head == {"a": [1, None, "x"]} and tensors["t"].tolist() == [1, 4]
    one.close()
    assert other.receive() is None


def test_an_answer_is_read_from_who_hung_up_at_once(run_plugin, monkeypatch, tmp_path):
    """A refusal can come before the last byte of the order has been sent."""

    def attend(line: Line) -> None:
        line.send({"is": "ready"})
        line.send({"is": "refused", "type": "DivergedError", "problems": ["no"]})
        line.close()

    monkeypatch.setattr(attacker, "attend", attend)
    monkeypatch.setattr(door, "take", lambda **how: ThreadProcess(tmp_path / "room"))
    with pytest.raises(DivergedError, match="no"):
        run_plugin("return self.answer(observation)")


def test_a_deep_message_is_refused():
    one, other = socket.socketpair()
    text = b"[" * 200_000
    one.settimeout(5)
    threading.Thread(
        target=one.sendall, args=((len(text)).to_bytes(4, "big") + bytes(8) + text,)
    ).start()
    with pytest.raises(BrokenLine):
        Line(other).receive()
    assert json.loads("{}") == {}


@pytest.mark.parametrize("isolation", [PROCESS, pytest.param(STRICT, marks=needs_sandbox)])
def test_an_evaluator_that_is_killed_leaves_no_process_and_the_next_removes_its_folder(
    tmp_path, monkeypatch, isolation
):
    """Its attack would sleep for ten minutes."""
    mark = f"600.{os.getpid()}"
    daemon = f"        import subprocess; subprocess.Popen(['/bin/sleep', {mark!r}])\n"
    (tmp_path / "sleeping.py").write_text(
        f"{BEGIN}{daemon * (isolation == STRICT)}"
        "        context.cache.save('a', {'pid': torch.tensor(os.getpid())})\n"
        "        import time; time.sleep(600)\n"
    )
    (tmp_path / "evaluator.py").write_text(
        "import os, signal, sys\n"
        f"sys.path[:0] = [{str(tmp_path)!r}, {str(Path(__file__).parent)!r}]\n"
        "import sleeping, test_door\n"
        "class ResultCache(test_door.ResultCache):\n"
        "    def save(self, name, tensors):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "context = test_door.Context(5, cache=ResultCache())\n"
        "test_door.run_attack(sleeping.Plugin(), test_door.observation(), context,\n"
        f"    outcome=test_door.Reconstruction, isolation={isolation!r})\n"
    )
    room = tmp_path / "tmp"
    room.mkdir()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "evaluator.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(room)},
        timeout=100,
    )
    assert done.returncode == -9, done.stderr
    (left,) = room.iterdir()
    ours = {"strict": mark, "process": str(left)}[isolation]
    for _ in range(100):
        if not any(ours in text for text in _environments_and_commands()):
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the process is still there")
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".lock").write_text("mine")
    planted = room / "fedre-attack-link"
    planted.symlink_to(tmp_path / "elsewhere")
    long_ago = time.time() - 2 * STALE_SECONDS
    os.utime(left / LOCK, (long_ago, long_ago))
    one = process.OwnedFolder()
    other = process.OwnedFolder()
    assert sorted(room.iterdir()) == sorted([one.path, other.path, planted])
    assert (tmp_path / "elsewhere" / ".lock").read_text() == "mine"
    planted.unlink()
    (one.path / "file").touch()
    one.remove()
    other.remove()
    assert list(room.iterdir()) == []


def test_a_folder_that_was_made_just_now_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = tmp_path / "fedre-attack-another"
    made.mkdir()
    (made / LOCK).touch()  # its process does not hold it yet
    process.OwnedFolder().remove()
    assert (made / LOCK).exists()
    long_ago = time.time() - 2 * STALE_SECONDS
    os.utime(made / LOCK, (long_ago, long_ago))
    process.OwnedFolder().remove()
    assert not made.exists()


def _environments_and_commands() -> list[str]:
    """Of all Python processes their environment, and of `sleep` the command."""
    out = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (place / "cmdline").read_text()
            attack = "sandbox.worker" in command
            out.append((place / "environ").read_text() if attack else command)
    return out
