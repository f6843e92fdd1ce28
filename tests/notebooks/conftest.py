"""Code cells and code blocks, run in one namespace in an empty folder."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.benchmarking import executors as processes
from fedre_privacy.benchmarking import worker as sweep_job
from fedre_privacy.benchmarking.executors import Before, Resources
from fedre_privacy.benchmarking.jobs import BenchmarkJob, Place

Namespace = dict[str, Any]


@pytest.fixture
def cells(repo: Path) -> Callable[[str], list[str]]:
    """The code of a notebook, cell by cell, without IPython's own lines."""

    def read(name: str) -> list[str]:
        book = json.loads((repo / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
        return [
            "".join(line for line in cell["source"] if not line.startswith("%"))
            for cell in book["cells"]
            if cell["cell_type"] == "code"
        ]

    return read


@pytest.fixture
def blocks(repo: Path) -> Callable[[str], list[str]]:
    """The Python blocks of a page of the documentation."""

    def read(name: str) -> list[str]:
        text = (repo / "docs" / f"{name}.md").read_text(encoding="utf-8")
        return re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    return read


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Namespace]]:
    """Run pieces of code one after the other, as a notebook would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDRE_QUICK", "1")
    before = set(sys.modules)

    def run(pieces: Sequence[str]) -> Namespace:
        names: Namespace = {"__name__": "__main__"}
        for number, piece in enumerate(pieces):
            exec(compile(piece, f"<piece {number}>", "exec"), names)
        return names

    yield run
    for name in set(sys.modules) - before:
        if name == "my_schemes":  # another test writes another one
            del sys.modules[name]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a benchmark's jobs in this process: starting others takes longer than the jobs."""

    def here(
        jobs: Sequence[BenchmarkJob],
        place: Place,
        commands: Mapping[str, Sequence[str]],
        resources: Resources,
        before: Before,
    ) -> Iterator[tuple[BenchmarkJob, int]]:
        for job in jobs:
            _, *arguments = commands[job.name]
            yield job, sweep_job.main(*arguments)

    monkeypatch.setattr(processes, "local", here)
