"""A folder of small results, and a headless Chromium driven over a pipe by clicks and keys."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import fedre_privacy as fp
from fedre_privacy.api import AttackResult, Run
from fedre_privacy.auditing.recorded_run import RunAudit
from fedre_privacy.experiments.membership_result import MembershipResult

TINY = {"data.size": 16, "data.per_class": 12, "record.keep_every": 1}

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--disable-dev-shm-usage", "--disable-extensions",
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2",  # as with a mouse
]  # fmt: skip


class Navigated(Exception):
    """The page went away while a script ran in it."""


class Browser:
    """One page of one browser.

    Args:
        binary: of Chromium.
        profile: an empty folder for it.
        width, height: of what is seen, in CSS pixels.
        dark: the colour scheme that pages are told is preferred.
    """

    def __init__(
        self, binary: str, profile: Path, *, width: int, height: int = 900, dark: bool = False
    ) -> None:
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._count, self._rest = 0, b""
        theirs, self._out = os.pipe()
        self._in, ours = os.pipe()

        def pipes() -> None:
            """What Chromium reads from is its descriptor 3, what it writes to its 4."""
            first, second = os.dup(theirs), os.dup(ours)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        target = self._call("Target.createTarget", {"url": "about:blank"}, page=False)["targetId"]
        self._session = self._call(
            "Target.attachToTarget", {"targetId": target, "flatten": True}, page=False
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._in)
        os.close(self._out)

    def resize(self, width: int, height: int = 900) -> None:
        """Make the window so large."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", size)

    def open(self, page: Path, address: str = "", *, shown: str = "main h1") -> float:
        """Open a file; return the seconds until an element that it shows was there."""
        self.requests.clear()
        began = time.monotonic()
        self._call("Page.navigate", {"url": "about:blank"})
        began = time.monotonic()
        self._call("Page.navigate", {"url": page.resolve().as_uri() + address})
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")
        self.wait(f"document.querySelector({shown!r}) !== null")
        return time.monotonic() - began

    def reload(self) -> None:
        """Load the page again, and return when what is there is no longer the page of before."""
        self.run("window.before = true")
        self._call("Page.reload")
        self.wait("window.before === undefined && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page, of a promise when it is there."""
        found = self._call(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True},
        )
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression of the page is true."""
        end = time.monotonic() + seconds
        while True:
            with suppress(Navigated):
                if self.run(condition):
                    return
            assert time.monotonic() < end, f"never came: {condition}"
            time.sleep(0.02)

    def click(self, selector: str, at: tuple[float, float] | None = None) -> None:
        """Click in the middle of the first element that is found, or at a part of its size."""
        across, down = at or (0.5, 0.5)
        self.wait(f"document.querySelector({selector!r}) !== null")
        box = self.run(
            f"(() => {{ const e = document.querySelector({selector!r}); "
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
            "return [r.left, r.top, r.width, r.height]; })()"
        )
        x, y = box[0] + box[2] * across, box[1] + box[3] * down
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            buttons = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **buttons})

    def click_text(self, selector: str, text: str) -> None:
        """Click the first of some elements that holds a text."""
        self.run("document.querySelectorAll('[data-probe]').forEach(e => delete e.dataset.probe)")
        found = self.run(
            f"(() => {{ const e = [...document.querySelectorAll({selector!r})].find("
            f"e => e.textContent.includes({text!r})); if (e) e.dataset.probe = '1'; "
            "return !!e; })()"
        )
        assert found, f"no {selector} says {text!r}"
        self.click("[data-probe='1']")

    def key(self, name: str) -> None:
        """Press and release a key."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27,
                 "Enter": 13, "Tab": 9, " ": 32, "Home": 36}  # fmt: skip
        given = {"key": name, "code": name, "windowsVirtualKeyCode": codes[name]}
        text = {"text": "\r"} if name == "Enter" else {}
        self._call("Input.dispatchKeyEvent", {"type": "keyDown", **given, **text})
        self._call("Input.dispatchKeyEvent", {"type": "keyUp", **given})

    def type(self, selector: str, text: str) -> None:
        """Click into a field and type."""
        self.click(selector)
        self._call("Input.insertText", {"text": text})

    def choose(self, label: str, value: str) -> None:
        """Choose a value of a select with a label, as its own list would."""
        self.run(
            "(() => { const s = [...document.querySelectorAll('label')].find(l => "
            f"l.firstChild.textContent === {label!r}).querySelector('select'); s.focus(); "
            f"s.value = {value!r}; s.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
        )

    def shot(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(
        self, method: str, given: dict[str, Any] | None = None, *, page: bool = True
    ) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": given or {}}
        if page:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._count:
                if "navigated" in told.get("error", {}).get("message", ""):
                    raise Navigated(told)
                assert "error" not in told, told
                return told["result"]  # type: ignore[no-any-return]
            self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        name, more = told.get("method"), told.get("params", {})
        if name == "Network.requestWillBeSent":
            self.requests.append(more["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(more["exceptionDetails"])[:2000])
        elif name == "Log.entryAdded" and more["entry"]["level"] in ("error", "warning"):
            self.problems.append(more["entry"]["text"])
        elif name == "Runtime.consoleAPICalled" and more["type"] in ("error", "warning"):
            self.problems.append(str(more["args"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            found = os.read(self._in, 1 << 16)
            assert found, "the browser is gone"
            self._rest += found
        told, _, self._rest = self._rest.partition(b"\0")
        return json.loads(told)  # type: ignore[no-any-return]


@pytest.fixture
def browse(chromium: str, tmp_path: Path) -> Callable[..., AbstractContextManager[Browser]]:
    """Start a browser of a width."""

    def start(width: int = 1400, *, height: int = 900, dark: bool = False) -> Browser:
        profile = tmp_path / f"profile-{width}-{dark}"
        return Browser(chromium, profile, width=width, height=height, dark=dark)

    return start


@dataclass(frozen=True)
class Small:
    """A folder of results: a run with three attacks and an audit, and a benchmark under way."""

    runs: Path
    run: Run
    pixel: AttackResult
    linear: AttackResult
    labels: AttackResult
    audit: RunAudit

    def path(self, folder: Path) -> str:
        """A folder as entries name it."""
        return folder.relative_to(self.runs).as_posix()


def job(label: str, seed: int, run: Run, attacked: AttackResult, more: float) -> dict[str, Any]:
    """The result of a job of a benchmark, made of an attack that was scored."""
    measures = [asdict(measure) for measure in attacked.card.measures if measure.over is not None]
    for measure in measures:
        measure["over"] += more
    entry = {
        "attack": "linear", "answers": "images", "target": "uploaded", "threat": "strong",
        "rounds_limit": None, "verdict": "leaks", "because": "", "measures": measures,
        "counterfactual": False, "folder": attacked.folder.name,
    }  # fmt: skip
    return {
        "label": label, "seed": seed, "training": run.plain(), "status": "complete",
        "attacks": [entry], "wall_s": 1.0, "run": run.name,
        "final": {**run.record["final"], "acc_post_broadcast": 0.5 + more / 10},
    }  # fmt: skip


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Results of every kind but a game of membership."""
    runs = tmp_path_factory.mktemp("viewing") / "runs"
    run = fp.train(
        "fedallrep", clients=4, rounds=1, set=TINY, defense="gaussian:clip=1,noise=0.01",
        runs=runs, device="cpu",
    )  # fmt: skip
    here = {"device": "cpu", "isolation": "same-process"}
    images = {"targets": 12, "threat": "strong", **here}
    pixel = fp.attack(run, "pixel", set={"attack.steps": 2, "eval.ceiling": 0}, **images)
    linear = fp.attack(run, "linear", set={"eval.ceiling": 0}, **images)
    labels = fp.attack(run, "labels", threat="realistic", **here)
    audit = fp.audit(run, trials=100)
    jobs = runs / "benchmarks" / "two" / "jobs"
    jobs.mkdir(parents=True)
    for label, more in (("weak <b>", 1.0), ("strong", 3.0)):
        for seed in (0, 1):
            made = job(label, seed, run, linear, more)
            (jobs / f"{label[:4]}-{seed}.json").write_text(json.dumps(made))
            (jobs / f"{label[:4]}-{seed}.yaml").write_text("{}")
    (jobs / "third-0.yaml").write_text("{}")
    return Small(runs, run, pixel, linear, labels, audit)


@pytest.fixture(scope="session")
def game(tmp_path_factory: pytest.TempPathFactory) -> MembershipResult:
    """A game of membership, beside its run in a folder of its own."""
    runs = tmp_path_factory.mktemp("game") / "runs"
    run = fp.train(
        "fedavg", clients=2, rounds=2, partition="iid", set=TINY, runs=runs, device="cpu"
    )
    return fp.membership(run, worlds=5, device="cpu")
