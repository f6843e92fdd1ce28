"""The benchmarks as modules, as `python benchmarks/NAME.py` finds them."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def load(repo: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Import a benchmark by its file's name."""
    folder = repo / "benchmarks"
    sys.path.insert(0, str(folder))  # a process started by one imports it too
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(folder))
        for path in folder.glob("*.py"):
            sys.modules.pop(path.stem, None)
