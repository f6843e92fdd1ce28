"""What is installed, built and downloaded: oldest versions, the same bytes, no network."""

from __future__ import annotations

import configparser
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEEDED = re.compile(r"([A-Za-z0-9_-]+)>=([0-9.]+)")


def needed(repo: Path) -> dict[str, str]:
    """What setup.cfg requires: name to what follows it."""
    parser = configparser.ConfigParser()
    parser.read(repo / "setup.cfg")
    lines = parser["options"]["install_requires"].split()
    return {re.split(r"[<>=!~]", line)[0]: line for line in lines}


def test_every_requirement_has_a_lower_bound_and_no_upper_one(repo):
    for line in needed(repo).values():
        assert NEEDED.fullmatch(line), line


def test_the_oldest_versions_are_those_of_setup_cfg(repo):
    text = (repo / "tests" / "oldest.txt").read_text()
    oldest = dict(re.findall(r"^([A-Za-z0-9_-]+)==([0-9.]+)$", text, re.MULTILINE))
    for name, line in needed(repo).items():
        bound = NEEDED.fullmatch(line)[2]
        assert oldest[name] == bound or oldest[name].startswith(f"{bound}."), name


@pytest.mark.slow
def test_wheel_and_sdist_have_the_same_bytes_wherever_they_are_built(repo, folders, tmp_path):
    dist = runpy.run_path(str(repo / "make_dist.py"))
    found = []
    for number, place in enumerate(("one", "elsewhere/two")):
        source = tmp_path / place
        source.mkdir(parents=True)
        for name in ("setup.cfg", "pyproject.toml", "README.md"):
            shutil.copy(repo / name, source)
        for folder in folders:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(repo / folder, source / folder, ignore=ignored)
        for path in source.rglob("*"):
            os.utime(path, (1_600_000_000 + number, 1_600_000_000 + 1000 * number))
            if path.is_file():
                path.chmod(0o600 if number else 0o664)
        found.append(dist["build"](source, tmp_path / f"dist{number}", 1_700_000_000))
    assert len(found[0]) == 2 and found[0] == found[1]


OFFLINE = """
import socket, sys

def refuse(*given, **more):
    raise AssertionError(f"the network was asked for: {given}")

socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
from fedre_privacy import api

few = {"data.size": 16, "data.per_class": 12, "model.dim": 16}
run = api.train("fedre", "digits", clients=3, rounds=1, runs=sys.argv[1], set=few)
result = api.attack(
    run, "pixel", targets=3, isolation="same-process",
    set={"attack.steps": 2, "eval.ceiling": 0},
)
assert (result.folder / "report.html").is_file()
"""


@pytest.mark.slow
def test_nothing_is_downloaded_by_training_attacking_and_drawing(tmp_path):
    home = {**os.environ, "HOME": str(tmp_path), "TORCH_HOME": str(tmp_path / "torch")}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(tmp_path / "runs")],
        env=home, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_commands_work_where_there_is_no_network(tmp_path):
    """Processes of their own, those of attacks and jobs among them, in an empty network."""
    apart = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"]).returncode:
        pytest.skip("no network namespaces here")
    tiny = [
        "--clients",
        "3",
        "--rounds",
        "1",
        "--set",
        "data.size=16",
        "--set",
        "data.per_class=12",
    ]
    commands = {
        "attack": [*tiny, "--attack", "linear", "--threat", "strong", "--quiet"],
        "benchmark": ["--protocols", "fedre", "--attacks", "labels@labels", "--seeds", "0"],
    }
    for name, words in commands.items():
        if name == "benchmark":
            words = [*words, *tiny]
        done = subprocess.run(
            [*apart, sys.executable, "-m", f"fedre_privacy.cli.{name}", *words],
            cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
