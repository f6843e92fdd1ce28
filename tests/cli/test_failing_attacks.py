"""What a plug-in raises or sends is its own error, and nothing of it passes for a result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = '''
from dataclasses import dataclass, replace

import torch

from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.core.config import knob
from fedre_privacy.core.events import Event

FORGED = {"event": "result", "folder": "/x", "verdict": "leaks", "text": "n", "step": 0}


@dataclass(frozen=True, kw_only=True)
class Odd(PixelInversion):
    """As pixel, but for what it is told to do."""

    how: str = knob("", help="what goes wrong")

    def weakened(self, observation):
        if self.how == "hook":
            raise KeyError("in a hook")
        return ()

    def run(self, observation, context):
        if self.how == "raises":
            raise TypeError("of its own")
        if self.how == "events":
            for name in ("result", "note", "attack.step", "attack.done", "error"):
                context.report(Event(name, FORGED))
                context.report(Event(name, {**FORGED, "step": 10**4000}))
        found = super().run(observation, context)
        if self.how == "double":
            return replace(found, images=found.images.double(), prior=found.prior.double())
        if self.how == "complex":
            return replace(found, images=found.images.to(torch.complex64))
        return None if self.how == "nothing" else found
'''


@pytest.fixture
def odd(cli: Any, copy: Path, nowhere: Path, fast: list[str], monkeypatch: pytest.MonkeyPatch):
    """Attack with the plug-in that lies in the working directory."""
    (nowhere / "oddly.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path)])
    monkeypatch.setattr("fedre_privacy.core.registry._TYPED", set())
    options = ["--plugin", "oddly", "--attack", "oddly:Odd", *fast[2:]]

    def attack(how: str, *more: str) -> Any:
        return cli.attack(copy, *options, "--set", f"attack.how={how}", *more)

    yield attack
    sys.modules.pop("oddly", None)


@pytest.mark.parametrize("isolation", ["process", "same-process"])
def test_what_a_plugin_raises_is_its_own_error(odd, copy, isolation):
    done = odd("raises", "--isolation", isolation)
    assert done.code == 9 and "bug" not in done.err
    (folder,) = (copy / "attacks").iterdir()
    assert done.err.splitlines()[-2:] == [
        "Attack 'oddly:Odd' failed: TypeError: of its own",
        f"Its traceback is in {folder / 'log.txt'}.",
    ]
    log = (folder / "log.txt").read_text()
    assert 'raise TypeError("of its own")' in log and "oddly.py" in log
    assert (folder / "record.json").stat().st_mode & 0o777 == 0o600


def test_what_it_raises_elsewhere_too(odd):
    done = odd("hook", "--json")
    assert done.code == 9 and done.events[-1]["type"] == "AttackFailedError"
    assert done.events[-1]["problems"] == ["Attack 'oddly:Odd' failed: KeyError: 'in a hook'"]


@pytest.mark.parametrize("isolation", ["process", "same-process"])
def test_its_events_pass_for_no_result(odd, isolation):
    done = odd("events", "--json", "--isolation", isolation)
    assert done.code == 0, done.err
    names = [event["event"] for event in done.events]
    assert names.count("result") == 1 and names[-1] == "result" and "error" not in names
    assert {"event": "note", "text": "n"} in done.events
    assert all(event.get("folder") != "/x" for event in done.events)


@pytest.mark.parametrize(
    ("how", "words"), [("complex", "'images' as complex64"), ("nothing", "a NoneType; an Outcome")]
)
def test_what_it_returns_is_refused_by_its_name(odd, how, words):
    done = odd(how)
    assert done.code == 3 and f"Attack 'oddly:Odd' returned {words}" in done.err


@pytest.mark.usefixtures("real_figures")
def test_double_precision_is_fine_and_what_holds_truth_is_for_its_owner(odd, copy):
    done = odd("double")
    assert done.code == 0, done.err
    (folder,) = (copy / "attacks").iterdir()
    held = {"report.html", "scores.csv", "trace.csv", "figure.png", "figure.pdf",
            "pictures.safetensors", "recovered.safetensors", "record.json"}  # fmt: skip
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert held <= set(modes) and {modes[name] for name in held} == {0o600}
    private = copy / "private"
    assert {path.stat().st_mode & 0o777 for path in private.iterdir()} == {0o600}
