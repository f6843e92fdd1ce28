"""A short run of the fuzzer: no changed folder ends in anything but a result or a clear error."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def fuzz(load):
    return load("fuzz")


@pytest.mark.slow
def test_a_short_run_finds_nothing(repo):
    command = ["benchmarks/fuzz.py", "--seconds=15", "--subjects=fedproto,uploads", "--seed=7"]
    done = subprocess.run(
        [sys.executable, *command], cwd=repo, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (all_of_them,) = [text.split() for text in done.stdout.splitlines() if text.startswith("all ")]
    count, same, clean = map(int, all_of_them[1:4])
    assert count >= 5 and same + clean > 0


def test_an_input_is_the_same_every_time(fuzz, tmp_path):
    folder = tmp_path / "subject"
    (folder / "inside").mkdir(parents=True)
    (folder / "inside" / "record.json").write_text('{"a": [1, {"b": "c"}], "d": 2.5}')
    (folder / "config.yaml").write_text("a: {b: 1}\n")
    subject = fuzz.Subject("one", folder, {})
    for number in range(30):
        found = []
        for name in ("x", "y"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            changes = fuzz.changed(subject, random.Random(number), tmp_path / name)
            files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
            found.append(
                (changes, [path.read_bytes() for path in files if path.name != "hostname"])
            )
        assert found[0] == found[1] and found[0][0]
    assert (folder / "config.yaml").read_text() == "a: {b: 1}\n"  # the original is a link to it


@pytest.mark.parametrize(
    ("read", "outcome"),
    [
        (lambda folder: folder.name, "a digest"),
        (lambda folder: 1 / 0, "uncaught error"),
        (lambda folder: [0] * (1 << 60), "memory"),
        (lambda folder: open(folder), "clean error"),
    ],
)
def test_how_an_input_ended(fuzz, tmp_path, read, outcome):
    found, key, _ = fuzz._opened(read, tmp_path)
    assert (found if found in fuzz.OUTCOMES else "a digest") == outcome
    assert ("ZeroDivisionError" in key) == (outcome == "uncaught error")
