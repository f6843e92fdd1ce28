"""The GPU kit keeps every line, ends a step in time, and goes on where it stopped."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def gpu(load):
    return load("gpu")


def step(gpu, name, code, minutes=0.01):
    return gpu.Step(name, "", minutes, f"-c '{code}'")


def test_the_kit_names_every_file_with_tests_of_a_gpu(gpu):
    tests = gpu.ROOT / "tests"
    marked = {
        str(path.relative_to(gpu.ROOT))
        for path in tests.rglob("test_*.py")
        if "@pytest.mark." + "gpu" in path.read_text(encoding="utf-8")
    }
    assert marked == {word for word in gpu.STEPS[0].command.split() if word.endswith(".py")}


def test_packages_that_were_carried_are_found(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "carried")
    book = gpu.Book(tmp_path / "gpu.json")
    code = "import os; print(os.environ['PYTHONPATH'])"
    gpu.run(step(gpu, "path", ""), ["-c", code], book, 60, "links")
    told = book.entries["path"]["lines"]
    assert told == [f"links{gpu.os.pathsep}carried"]


def test_every_line_is_kept_and_a_failure_is_marked(gpu, tmp_path):
    book = gpu.Book(tmp_path / "gpu.json")
    gpu.run(step(gpu, "good", ""), ["-c", "print(1); print(2)"], book, 60, "")
    gpu.run(step(gpu, "bad", ""), ["-c", "print(3); raise SystemExit(4)"], book, 60, "")
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert told["steps"]["good"]["lines"] == ["1", "2"]
    assert told["steps"]["good"]["status"] == gpu.DONE
    assert told["steps"]["bad"]["status"] == gpu.FAILED
    assert "**bad**" in gpu.table(told["steps"]) and "gpu" in told["machine"]


def test_a_step_ends_when_the_time_is_over_and_keeps_what_it_said(gpu, tmp_path):
    book = gpu.Book(tmp_path / "gpu.json")
    code = "import time; print(5, flush=True); time.sleep(60)"
    gpu.run(step(gpu, "long", ""), ["-c", code], book, 2, "")
    entry = json.loads((tmp_path / "gpu.json").read_text())["steps"]["long"]
    assert entry["status"] == gpu.CUT and entry["lines"] == ["5"] and entry["seconds"] < 30


def test_what_is_done_is_not_repeated_and_what_was_cut_is(gpu, tmp_path, monkeypatch, capsys):
    steps = (step(gpu, "one", "print(1)"), step(gpu, "two", "print(2)"))
    monkeypatch.setattr(gpu, "STEPS", steps)
    out = tmp_path / "gpu.json"
    known = {"one": {"asked": "", "command": "", "status": gpu.DONE, "lines": ["kept"]},
             "two": {"asked": "", "command": "", "status": gpu.CUT, "lines": []}}  # fmt: skip
    out.write_text(json.dumps({"steps": known}))
    assert gpu.main(["--rehearse", "--out", str(out)]) == 0
    entries = json.loads(out.read_text())["steps"]
    assert entries["one"]["lines"] == ["kept"]
    assert entries["two"]["status"] == gpu.DONE and entries["two"]["lines"] == ["2"]


def test_a_step_without_the_time_is_not_begun(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "STEPS", (step(gpu, "one", "print(1)", minutes=5),))
    out = tmp_path / "gpu.json"
    assert gpu.main(["--rehearse", "--minutes", "0.01", "--out", str(out)]) == 0
    assert "not begun" in capsys.readouterr().out and not out.is_file()


@pytest.mark.slow
def test_the_checkout_is_imported_from_links(gpu):
    with gpu.importable() as folder:
        code = "import fedre_privacy.attacks.base as a; print(a.__file__)"
        import os
        import subprocess
        import sys

        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": folder},
        )  # fmt: skip
        assert os.path.realpath(done.stdout.strip()) == str(gpu.ROOT / "attacks" / "base.py")
