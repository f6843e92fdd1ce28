"""Modules of a user's own: found by name, read and copied, without being imported."""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

MOST = 1000
"""Files that the modules of a plugin may consist of."""


def copy_own_modules(names: Iterable[str], folder: Path, installed: Sequence[Path]) -> None:
    """Copy modules that are not installed, and those that they import, to a folder.

    Of a package all modules are copied. Imports are read in the text, so that nothing runs.

    Args:
        names: of modules, dotted.
        folder: is made; what it holds afterwards can be imported from there.
        installed: folders of which nothing is copied.
    """
    folder.mkdir()
    waiting, seen = [name.partition(".")[0] for name in names], set[str]()
    copied = 0
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for home in _homes(name):
            if any(home.is_relative_to(root) for root in installed):
                continue
            package = not home.is_file()
            for source in sorted(home.rglob("*.py")) if package else [home]:
                copied += 1
                if copied > MOST:
                    return
                place = Path(name) / source.relative_to(home) if package else Path(home.name)
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                waiting += _imported_names(source)


def _homes(name: str) -> list[Path]:
    """The file, or the folders, that a top-level module is imported from."""
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None) or PathFinder.find_spec(name, ["", *sys.path])
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place).resolve() for place in spec.submodule_search_locations]
    source = Path(spec.origin or "")
    return [source.resolve()] if source.suffix == ".py" and source.is_file() else []


def _imported_names(source: Path) -> list[str]:
    """Top-level names that the text of a module imports; relative ones are of its package."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):  # its import says so, where it can be told
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.append(node.module)
    return [name.partition(".")[0] for name in found]
