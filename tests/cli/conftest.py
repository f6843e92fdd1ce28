"""The commands in-process, and one tiny trained run that most tests share."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedre_privacy.cli import attack, train
from fedre_privacy.reports import attack as pages

TINY = [
    *("--set", "data.size=16", "--set", "data.per_class=12", "--set", "record.keep_every=2"),
    *("--clients", "4", "--rounds", "3"),
]
FAST = ["--attack", "pixel", "--targets", "6", "--set", "attack.steps=2"]


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """Standard output read as one JSON object a line; anything else in it is an error."""
        return [json.loads(line, parse_constant=_refuse) for line in self.out.splitlines()]

    def line(self, heading: str) -> str:
        """The text behind a heading that occurs once."""
        (found,) = [text for text in self.out.splitlines() if text.startswith(heading + " ")]
        return found.removeprefix(heading).strip()

    @property
    def table(self) -> list[str]:
        """The lines of the result table."""
        lines = self.out.splitlines()
        start = next(i for i, text in enumerate(lines) if text.startswith("RESULT")) + 1
        return [text for text in lines[start:] if text.startswith("  ")]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class Commands:
    """The two commands, called in this process or in one of their own."""

    def attack(self, *arguments: object) -> Outcome:
        return self._call(attack.main, arguments)

    def train(self, *arguments: object) -> Outcome:
        return self._call(train.main, arguments)

    def _call(self, main: Callable[[Sequence[str]], int], arguments: Sequence[object]) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main([str(argument) for argument in arguments])
            except SystemExit as stopped:  # argparse
                code = int(stopped.code or 0)
        return Outcome(code, out.getvalue(), err.getvalue())

    def start(self, name: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        """Start a command as a process of its own, on one core so that its tiles take turns."""
        return subprocess.Popen(
            [sys.executable, "-m", f"fedre_privacy.cli.{name}", *map(str, arguments)],
            text=True,
            # a test run in the background ignores SIGINT, and its children would inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **{
                "env": {**os.environ, "OMP_NUM_THREADS": "1"},
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **options,
            },  # fmt: skip
        )


def read(path: Path) -> Any:
    """Read JSON that any reader can parse: no NaN, no infinity."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)


@pytest.fixture(scope="session")
def cli() -> Commands:
    return Commands()


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Options of a training of a fraction of a second."""
    return list(TINY)


@pytest.fixture(scope="session")
def fast() -> list[str]:
    """Options of an attack of a fraction of a second."""
    return list(FAST)


@pytest.fixture(scope="session")
def read_json() -> Callable[[Path], Any]:
    return read


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, cli: Commands) -> Path:
    """A folder with one trained FedRE run."""
    folder = tmp_path_factory.mktemp("shared") / "runs"
    done = cli.train("--protocol", "fedre", *TINY, "--runs-dir", folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="session")
def run(runs: Path) -> Path:
    """That run's folder; tests add attacks to it and change nothing else."""
    (found,) = runs.glob("fedre-*")
    return found


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The run without attacks, to be damaged."""
    target = tmp_path / "runs" / run.name
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("attacks"))
    return target


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory: a command that is refused leaves it empty."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def real_figures() -> None:
    """Ask for figures to be drawn; tests that do not get empty files instead, to save time."""


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words in every figure that is saved."""
    words: list[str] = []

    def note(figure: Figure, path: Path) -> list[Path]:
        words.extend(item.get_text() for item in figure.findobj(Text))
        made = [path.with_suffix(ending) for ending in (".png", ".pdf", ".svg")]
        for one in made:
            one.touch()
        return made

    if "real_figures" not in request.fixturenames:
        monkeypatch.setattr(pages, "save_figure", note)
    return words
