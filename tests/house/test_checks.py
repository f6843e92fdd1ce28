"""The linter, the formatter and the type checker have nothing to say."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(tool) is None, reason=f"{tool} is not installed (extra: test)"
    )


def run(*command: str, cwd: Path, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"


@needs("ruff")
def test_lint(repo):
    run("ruff", "check", "--no-cache", ".", cwd=repo)


@needs("ruff")
def test_format(repo):
    run("ruff", "format", "--check", "--diff", "--no-cache", ".", cwd=repo)


@needs("mypy")
@pytest.mark.slow
def test_types(repo, folders, tmp_path, request):
    # mypy cannot follow `package_dir`: give it links laid out as the package is imported.
    root = tmp_path / "fedre_privacy"
    root.mkdir()
    for path in (repo / "fedre_privacy").iterdir():
        if path.name != "__pycache__":
            (root / path.name).symlink_to(path)
    for folder in folders:
        if folder != "fedre_privacy":
            (root / folder).symlink_to(repo / folder)
    run(
        "mypy",
        f"--config-file={repo / 'pyproject.toml'}",
        f"--cache-dir={request.config.cache.mkdir('mypy')}",
        "--package=fedre_privacy",
        cwd=tmp_path,
        MYPYPATH=str(tmp_path),
    )
