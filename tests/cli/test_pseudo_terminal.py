"""What commands show on a terminal of their own: a bar that moves, with the time that remains."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ONE_CORE = {"OMP_NUM_THREADS": "1"}
BAR = re.compile(r"(train|attack) +[━╸╺ ]+ +(\d+) % +(.*?) 0:\d\d:\d\d < (\d:\d\d:\d\d|-:--:--)")
SLOW = """
import time
from fedre_privacy.cli.output import Output
from fedre_privacy.core.events import Event
output = Output(as_json=False, quiet=False)
for number in range(1, 6):
    time.sleep(0.6)
    output(Event("train.round", {"round": number, "of": 20, "loss": 1.5, "accuracy": None}))
output.line("Run", "done")
"""


def shown(start: Callable[..., Any], *, width: int = 100) -> tuple[int, str]:
    """The exit code of a process and all that its terminal received."""
    ours, theirs = pty.openpty()
    process = start(theirs, {**os.environ, "COLUMNS": str(width), "TERM": "xterm", **ONE_CORE})
    os.close(theirs)
    received = b""
    try:
        while part := os.read(ours, 1 << 16):
            received += part
    except OSError:  # Linux says so where the other end is closed
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=60), received.decode()


def plain(text: str) -> str:
    """Without colours; what moves the cursor becomes a line of its own."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", lambda f: "" if f[0].endswith("m") else "\n", text)


def seconds(left: str) -> int:
    hours, minutes, rest = map(int, left.split(":"))
    return 3600 * hours + 60 * minutes + rest


def test_the_time_that_remains_is_told_from_the_rounds_that_were():
    def start(terminal: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SLOW], stdout=terminal, env=environment)

    code, text = shown(start)
    bars = BAR.findall(plain(text))
    assert code == 0 and [one[1] for one in bars][-1] == "25"
    assert {int(one[1]) for one in bars} >= {5, 10, 15, 20, 25}
    left = [seconds(one[3]) for one in bars if "-" not in one[3]]
    assert 6 <= left[-1] <= 25  # 15 rounds of 0.6 s on a machine that may be busy
    assert bars[-1][2] == "loss 1.500"
    assert text.rstrip().endswith("done") and "done" not in text[: text.rindex("\x1b[2K")]


@pytest.mark.slow
def test_commands_show_it_and_take_it_away(
    cli: Any, tiny: list[str], fast: list[str], tmp_path: Path
):
    runs = ["--runs-dir", str(tmp_path / "runs")]
    train = ["--protocol", "fedre", *tiny, *runs]

    def start(name: str, *given: str) -> Callable[[int, dict[str, str]], Any]:
        return lambda terminal, environment: cli.start(
            name, *given, stdout=terminal, env=environment
        )

    code, text = shown(start("train", *train))
    bars = BAR.findall(plain(text))
    assert code == 0 and bars[-1][:2] == ("train", "100")
    assert all("accuracy" in one[2] for one in bars)
    after = text[text.rindex("\x1b[2K") :]
    assert "━" not in after and "RUN" in after.upper()
    (run,) = (tmp_path / "runs").glob("fedre-*")
    code, text = shown(start("attack", str(run), *fast, "--set", "attack.steps=40"))
    bars = BAR.findall(plain(text))
    assert code == 0 and any(one[0] == "attack" and "match" in one[2] for one in bars)
    assert "scoring" in plain(text) and "━" not in text[text.rindex("\x1b[2K") :]
