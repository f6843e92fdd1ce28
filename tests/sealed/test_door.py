"""What an attack's process may send, and what is made of anything else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.errors import (
    AttackFailedError,
    ConfigError,
    DivergedError,
    IncompatibleError,
)
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.sealed import door, walls
from fedre_privacy.sealed.door import PROCESS, SAME, STRICT, chosen, play
from fedre_privacy.sealed.line import BrokenLine, Line
from fedre_privacy.sealed.modules import Modules
from fedre_privacy.threats.base import threats

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


@pytest.fixture
def run_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Write a plugin whose `run` has these lines, and let it play; returns images and events."""
    name = f"plugin_{abs(hash(request.node.name)) % 10**8}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)

    def run(*lines: str, more: str = "", cache: ResultCache | None = None, **settings: float):
        body = "\n".join(f"        {line}" for line in lines)
        (tmp_path / f"{name}.py").write_text(f"{BEGIN}{body}\n{more}")
        module = __import__(name)
        events: list[str] = []
        context = Context(
            5, report=lambda event: events.append(event.name), cache=cache or ResultCache()
        )
        done = play(
            module.Plugin(**settings),
            observation(),
            context,
            outcome=Reconstruction,
            isolation=PROCESS,
        )
        return done.outcome, events

    return run


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
        (["os._exit(3)"], IncompatibleError, "ended without an answer"),
        (["return self.answer(observation, images=torch.full((1, 1, 4, 4), 2.0))"],
         IncompatibleError, "values are in"),
    ],
)  # fmt: skip
def test_what_is_not_an_answer_ends_in_one_error(run_plugin, lines, error, words):
    with pytest.raises(error, match="(?s)" + words.replace("(", r"\(")):
        run_plugin(*lines, "return self.answer(observation)")


def test_an_answer_is_checked_on_this_side_too(run_plugin):
    """A plugin can pass the checks in its own process by; those here it cannot."""
    with pytest.raises(IncompatibleError, match="returned 'images' of shape"):
        run_plugin(
            "made = self.answer(observation, images=torch.zeros(3, 1, 4, 4))",
            "tensors, texts = made.save()",
            "line.send({'is': 'done', 'texts': texts, 'peak_bytes': 'many'}, tensors)",
            "os._exit(0)",
        )


def test_what_a_plugin_prints_is_repeated(run_plugin, capsys):
    run_plugin(r"print('hello from inside \x1b[2J', flush=True)", "return self.answer(observation)")
    assert r"hello from inside \x1b[2J" in capsys.readouterr().err


def test_an_interrupted_attack_leaves_no_process(run_plugin):
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
    assert chosen("auto", gpu) == SAME
    for asked in (STRICT, PROCESS):
        with pytest.raises(ConfigError, match="--device cpu"):
            chosen(asked, gpu)
    monkeypatch.setattr(walls, "version", lambda: 0)
    assert chosen("auto", cpu) == PROCESS
    with pytest.raises(ConfigError, match="Landlock"):
        chosen(STRICT, cpu)
    with pytest.raises(ConfigError, match="Did you mean 'strict'"):
        chosen("strickt", cpu)


def test_what_may_be_read_goes_around_what_is_hidden(tmp_path):
    for name in ("a/b/run", "a/b/other", "a/c", "d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    found = walls.readable([tmp_path, tmp_path / "a" / "c"], [tmp_path / "a" / "b" / "run"])
    assert {str(path.relative_to(tmp_path)) for path in found} == {
        "a/b/other",
        "a/c",
        "a/file",
        "d",
    }
    assert walls.readable([tmp_path / "a" / "b" / "run"], [tmp_path / "a"]) == []


@pytest.mark.skipif(not walls.version(), reason="no Landlock on this system")
def test_walls_hold_for_children_too(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "file").write_text("secret")
    room, secret = str(tmp_path / "open"), str(tmp_path / "shut" / "file")
    code = (
        "import subprocess, sys\n"
        "from fedre_privacy.sealed.walls import raise_walls, SYSTEM, FACTS\n"
        f"raise_walls([*SYSTEM, *FACTS, sys.prefix, sys.base_prefix], [{room!r}])\n"
        f"open({room!r} + '/x', 'w').close()\n"
        f"done = subprocess.run(['cat', {secret!r}], capture_output=True)\n"
        "print(done.returncode, done.stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1 b''"


def test_a_line_carries_texts_and_tensors():
    one, other = (Line(end) for end in socket.socketpair())
    one.send({"a": [1, None, "x"]}, {"t": torch.arange(6).reshape(2, 3)[:, 1]})
    head, tensors = other.receive()
    assert head == {"a": [1, None, "x"]} and tensors["t"].tolist() == [1, 4]
    one.close()
    assert other.receive() is None


def test_an_answer_is_read_from_who_hung_up_at_once(run_plugin, monkeypatch):
    """A refusal can come before the last byte of the order has been sent."""

    def connect(attendant: object, folder: Path) -> Line:
        mine, other = socket.socketpair()
        theirs = Line(other)
        theirs.send({"is": "started", "pid": 0})
        theirs.send({"is": "refused", "type": "DivergedError", "problems": ["no"]})
        theirs.close()
        return Line(mine)

    monkeypatch.setattr(door._Attendant, "connect", connect)
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


@pytest.mark.slow
def test_an_evaluator_that_is_killed_leaves_neither_process_nor_folder(tmp_path):
    """Its attack would sleep for ten minutes."""
    (tmp_path / "sleeping.py").write_text(
        f"{BEGIN}        context.cache.save('a', {{'pid': torch.tensor(os.getpid())}})\n"
        "        import time; time.sleep(600)\n"
    )
    (tmp_path / "evaluator.py").write_text(
        "import os, signal, sys\n"
        f"sys.path[:0] = [{str(tmp_path)!r}, {str(Path(__file__).parent)!r}]\n"
        "import sleeping, test_door\n"
        "class ResultCache(test_door.ResultCache):\n"
        "    def save(self, name, tensors):\n"
        "        print(int(tensors['pid']), flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "context = test_door.Context(5, cache=ResultCache())\n"
        "test_door.play(sleeping.Plugin(), test_door.observation(), context,\n"
        "    outcome=test_door.Reconstruction, isolation=test_door.PROCESS)\n"
    )
    room = tmp_path / "tmp"
    room.mkdir()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "evaluator.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(room)},
    )
    assert done.returncode == -9, done.stderr
    pid = int(done.stdout)
    for _ in range(200):
        gone = not Path(f"/proc/{pid}").exists() if Path("/proc").is_dir() else True
        if gone and not list(room.iterdir()):
            return
        threading.Event().wait(0.05)
    raise AssertionError((gone, list(room.iterdir())))
