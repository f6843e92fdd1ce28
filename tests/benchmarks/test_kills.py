"""Processes killed at random moments end, once resumed, at the files of an undisturbed one."""

import re
import subprocess
import sys

import pytest


@pytest.fixture
def kills(load):
    return load("kills")


def test_what_differs_is_seen_and_times_are_not(kills, tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "record.json").write_text('{"status": "complete", "wall_s": 1.5}')
    (tmp_path / "metrics.csv").write_text("round,wall_s\n1,0.5\n")
    (tmp_path / "report.html").write_text("Took 1.5 s, of which 0.9 s; Peak 200.1 MiB; 12 targets")
    (tmp_path / "uploads.bin").write_bytes(b"a")
    (tmp_path / "log.txt").write_text("x")
    whole = kills.contents(tmp_path)
    (tmp_path / "record.json").write_text('{"status": "complete", "wall_s": 2.5}')
    (tmp_path / "metrics.csv").write_text("round,wall_s\n1,0.7\n")
    (tmp_path / "report.html").write_text(
        "Took 1 min 2 s, of which 9.9 s; Peak 201.1 MiB; 12 targets"
    )
    (tmp_path / "log.txt").write_text("y")
    assert kills.faults(kills.contents(tmp_path), whole) == []
    (tmp_path / "record.json").write_text('{"status": "partial", "wall_s": 2.5}')
    (tmp_path / "metrics.csv").write_text("round,wall_s\n2,0.7\n")
    (tmp_path / "report.html").write_text("Took 1 s, of which 9.9 s; Peak 201.1 MiB; 13 targets")
    (tmp_path / "uploads.bin").unlink()
    (tmp_path / ".12.uploads.bin").write_bytes(b"a")
    assert sorted(kills.faults(kills.contents(tmp_path), whole)) == [
        ".12.uploads.bin left",
        "metrics.csv differs",
        "record.json differs",
        "report.html differs",
        "uploads.bin absent",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["train", "draw", "attack", "sweep"])
def test_killed_at_three_moments(repo, case):
    done = subprocess.run(
        [sys.executable, "benchmarks/kills.py", "--moments", "3", "--seed", "11", "--of", case],
        cwd=repo,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ *all +3 +\d +\d +3 +0$", done.stdout, re.MULTILINE)
