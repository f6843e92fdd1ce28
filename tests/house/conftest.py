"""Our own source files, parsed once."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

FOLDERS = {
    "fedre_privacy": "fedre_privacy",
    "attacks": "fedre_privacy.attacks",
    "defenses": "fedre_privacy.defenses",
    "eval": "fedre_privacy.eval",
}


@pytest.fixture(scope="session")
def folders() -> Mapping[str, str]:
    """Folders of the checkout that hold our package, and the name each is imported by."""
    return FOLDERS


@pytest.fixture(scope="session")
def modules(repo: Path) -> dict[str, ast.Module]:
    """Every module of the package by its dotted name; packages end in ``.__init__``."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((repo / folder).rglob("*.py")):
            parts = path.relative_to(repo / folder).with_suffix("").parts
            found[".".join((package, *parts))] = ast.parse(path.read_text(encoding="utf-8"))
    return found
