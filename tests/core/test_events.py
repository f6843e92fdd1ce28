"""Events have declared keys, and those of an attack can be taken for nothing else."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch

from fedre_privacy.cli.output import Output
from fedre_privacy.core.events import EVENTS, OF_ATTACKS, Event, only_an_attacks

ROOT = Path(__file__).parents[2]
STEP = {"step": 0, "of": 3, "first": 0, "rows": 2, "total": 2, "match": torch.tensor([0.5, 0.25])}
HUGE = 10**5000


def passed(name: object, data: object) -> list[Event]:
    out: list[Event] = []
    only_an_attacks(out.append)(Event(name, data))  # type: ignore[arg-type]
    return out


def test_every_event_that_is_reported_is_declared_with_its_keys():
    found = 0
    for room in ("fedre_privacy", "attacks", "defenses", "eval"):
        for path in (ROOT / room).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Event"):
                    continue
                if not call.args or not isinstance(call.args[0], ast.Constant):
                    continue
                found += 1
                name = call.args[0].value
                assert name in EVENTS, f"{path}: {name}"
                if len(call.args) > 1 and isinstance(call.args[1], ast.Dict):
                    keys = {k.value for k in call.args[1].keys if isinstance(k, ast.Constant)}
                    assert keys <= EVENTS[name], f"{path}: {name}"
    assert found >= 15


def test_an_attacks_events_pass_with_their_keys_alone():
    (step,) = passed("attack.step", {**STEP, "event": "result", "folder": "/x", "verdict": "leaks"})
    assert set(step.data) == set(STEP) and step.data["match"].dtype == torch.float32
    (note,) = passed("note", {"text": "halved", "event": "result"})
    assert note.data == {"text": "halved"}
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64):
        (step,) = passed("attack.step", {**STEP, "match": torch.ones(2, dtype=dtype)})
        assert step.data["match"].tolist() == [1, 1]


@pytest.mark.parametrize("missing", list(STEP))
def test_a_step_that_lacks_a_key_is_dropped(missing):
    assert passed("attack.step", {key: v for key, v in STEP.items() if key != missing}) == []


@pytest.mark.parametrize(
    "odd", [None, -1, 0.5, "1", [1], {}, True, pytest.param(HUGE, id="huge"), float("nan")]
)
@pytest.mark.parametrize("key", list(STEP))
def test_a_step_with_an_odd_value_is_dropped(key, odd):
    assert passed("attack.step", {**STEP, key: odd}) == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("note", {}), ("note", {"text": 7}), ("note", {"text": "x" * 10_001}), ("note", None),
        ("note", {"text": None}), ("result", {"verdict": "leaks"}), ("error", {"exit": 0}),
        ("attack.done", {"folder": "/x", "wall_s": 1.0}), ("attack.trial", {"lines": {"a": "b"}}),
        ("train.round", {"round": 1, "of": 1, "loss": 0.0, "accuracy": None}), (7, {}), ([], {}),
        ("attack.step", {**STEP, "match": torch.ones(2, dtype=torch.complex64)}),
    ],
)  # fmt: skip
def test_anything_else_is_dropped(name, data):
    assert passed(name, data) == []


def test_no_data_can_name_its_own_event(capsys: pytest.CaptureFixture[str]):
    output = Output(as_json=True, quiet=False)
    output(Event("note", {"text": "x", "event": "result", "huge": HUGE, "deep": {"a": [HUGE]}}))
    told = json.loads(capsys.readouterr().out)
    assert told["event"] == "note" and told["huge"].startswith("0x")


def test_what_people_see_survives_what_passes(capsys: pytest.CaptureFixture[str]):
    output = Output(as_json=False, quiet=False)
    for total in (0, 1, 2**53):
        for event in passed("attack.step", {**STEP, "total": total, "match": torch.ones(0)}):
            output(event)
    for name, kind in OF_ATTACKS.items():
        assert EVENTS[name] == set(kind.__annotations__)
