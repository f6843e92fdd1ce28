"""What the two set-up commands install, as make would run them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def planned(repo: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The commands that make would run in a checkout without an environment."""
    command = ["make", "--dry-run", "--always-make", "VENV=nowhere", *words]
    return subprocess.run(command, cwd=repo, capture_output=True, text=True)


def installs(repo: Path, *words: str) -> list[str]:
    done = planned(repo, *words)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "pip install" in line]
    return [line.partition("--quiet ")[2] for line in lines]


def test_an_attack_needs_no_test_package_and_tests_need_theirs(repo):
    assert installs(repo, "attack") == ["--editable ."]
    assert installs(repo, "test") == ["--editable .", "--editable '.[test]'"]
    assert installs(repo, "lint") == installs(repo, "docs") == installs(repo, "test")


def test_the_build_of_torch_for_cpus_comes_first_where_it_is_asked_for(repo):
    torch = "torch torchvision --index-url https://download.pytorch.org/whl/cpu"
    assert installs(repo, "attack", "TORCH=cpu") == [torch, "--editable ."]
    assert installs(repo, "test", "TORCH=cpu")[0] == torch
    own = installs(repo, "attack", "TORCH=cpu", "TORCH_INDEX=http://mirror/simple")
    assert own[0] == "torch torchvision --index-url http://mirror/simple"
    refused = planned(repo, "attack", "TORCH=gpu")
    assert refused.returncode == 2 and "the only choice is TORCH=cpu" in refused.stderr
