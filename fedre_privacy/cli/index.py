"""What the built-in parts say, kept in a file: help pages and lists import no part to say it.

A list asks the parts themselves where a file of theirs has come or gone. After another change of a
part, or of a constant that a help page names, write the file anew with
``python -m fedre_privacy.cli.index``; a test compares it with the parts.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedre_privacy.core.options import Constant

FILE = Path(__file__).with_suffix(".json")
_asked: set[Constant] = set()


@cache
def read_index() -> dict[str, Any]:
    """Read the file: lists of the built-in parts, and constants by ``module:NAME``."""
    read: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def indexed_constant(value: Any) -> Any:
    """Return a constant as the file has it, else as its module has it; other values as they are."""
    if not isinstance(value, Constant):
        return value
    _asked.add(value)
    constants = read_index()["constants"]
    return constants[value] if value in constants else _plain(value.load())


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | Mapping):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def current() -> dict[str, Any]:
    """Return what the file should hold, from the parts and the modules themselves."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__, f"{__package__}."):
        parser = getattr(importlib.import_module(module.name), "parser", None)
        if parser is not None:
            parser()
    lists = importlib.import_module(f"{__package__}.lists")
    return {
        "constants": {name: _plain(name.load()) for name in sorted(_asked)},
        "files": lists.files(),
        "parts": lists.registered_parts(),
    }


def write() -> None:
    """Write the file."""
    text = json.dumps(current(), indent=1, ensure_ascii=False)
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    importlib.import_module("fedre_privacy.cli.index").write()
