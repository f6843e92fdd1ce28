"""The page on the code's layout names files that exist, and no file is too long to be read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

NAMED = re.compile(r"(?<![\w./-])([\w/]+\.py)(?:: ([\w.]+))?")
"""A Python file, and what is in it: ``runs/run.py: Messages``."""

LONGEST = 450
"""Lines that a file may have."""


def homes(repo: Path, path: str) -> Path | None:
    """The file that a page means by a path: from the package's folder, or from the checkout."""
    return next((at for at in (repo / "fedre_privacy" / path, repo / path) if at.is_file()), None)


def defined(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """Dotted names of functions and classes, at any depth, with and without what they lie in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from {node.name, f"{inside}{node.name}"}
            yield from defined(node, f"{inside}{node.name}.")


def absent(repo: Path, text: str) -> list[str]:
    """Files that a text names and that are not there, or do not define what it says."""
    out = []
    for path, name in NAMED.findall(text):
        home = homes(repo, path)
        if home is None:
            out.append(path)
        elif name and name.rstrip(".") not in set(defined(ast.parse(home.read_text("utf-8")))):
            out.append(f"{path}: {name}")
    return out


def test_every_file_that_the_page_names_exists(repo: Path) -> None:
    text = (repo / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(set(NAMED.findall(text))) > 40
    assert absent(repo, text) == []
    said = "See `runs/no_such.py`, `runs/run.py: Nothing` and `cli/train.py: main`."
    assert absent(repo, said) == ["runs/no_such.py", "runs/run.py: Nothing"]


def too_long(repo: Path, folders: Mapping[str, str]) -> dict[str, int]:
    """Files of the product with more lines than can be read at once."""
    found = {}
    for folder in folders:
        for kind in ("py", "js", "css", "html"):
            for path in (repo / folder).rglob(f"*.{kind}"):
                count = len(path.read_text(encoding="utf-8").splitlines())
                if count > LONGEST:
                    found[path.relative_to(repo).as_posix()] = count
    return found


def test_no_file_is_too_long(repo: Path, folders: Mapping[str, str], tmp_path: Path) -> None:
    assert too_long(repo, folders) == {}
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "page.js").write_text("x;\n" * (LONGEST + 1))
    assert too_long(tmp_path, {"eval": ""}) == {"eval/page.js": LONGEST + 1}
