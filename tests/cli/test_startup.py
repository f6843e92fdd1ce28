"""Help pages and lists come before anything large is imported, and say what the parts say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedre_privacy.cli import index, lists
from fedre_privacy.cli.output import Output
from fedre_privacy.core import registry
from fedre_privacy.core.options import Constant

ASKED = [
    *([name, flag] for name in ("train", "attack", "benchmark", "audit", "membership", "view")
      for flag in ("--help", "--version", "--print-completion=bash", "--no-such-option")),
    *([name, "--preset", "list"] for name in ("train", "attack", "benchmark", "audit")),
    ["attack", "list"], ["attack", "list", "--json"], ["attack", "verify", "--help"],
    ["train", "curves", "--help"], ["benchmark", "--communication", "--help"],
    ["benchmark", "--toy", "--help"], ["view", "--engine"],
    *(["benchmark", word, "--help"] for word in ("claim", "verify", "leaderboard")),
]  # fmt: skip
LARGE = {"torch", "torchvision", "numpy", "pandas", "matplotlib", "scipy", "sklearn", "skimage",
         "opacus", "safetensors.torch", "fedre_privacy.api"}  # fmt: skip
SCRIPT = """
import contextlib, importlib, io, json, sys
ended = []
for name, *given in json.loads(sys.argv[1]):
    main = importlib.import_module(f"fedre_privacy.cli.{name}").main
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(given)
        except SystemExit as stopped:
            code = stopped.code
    loaded = sorted(set(json.loads(sys.argv[2])) & set(sys.modules))
    ended.append([[name, *given], code, said.getvalue(), loaded])
print(json.dumps(ended))
"""


def asked(commands: list[list[str]]) -> list[tuple[list[str], int, str, list[str]]]:
    """How commands ended in a process of their own, what they said, what large was imported."""
    words = [sys.executable, "-c", SCRIPT, json.dumps(commands), json.dumps(sorted(LARGE))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [tuple(one) for one in json.loads(done.stdout)]


def test_help_lists_and_wrong_usage_import_nothing_large():
    ended = asked(ASKED)
    assert len(ended) == len(ASKED)
    for words, code, said, large in ended:
        assert large == [], words
        assert code == (2 if words[-1] in ("--no-such-option", "--engine") else 0), (words, said)
        assert said.strip(), words


def test_the_index_is_what_the_parts_say():
    assert index.read_index() == index.current(), "write it anew: python -m fedre_privacy.cli.index"
    assert len(index.read_index()["parts"]["attacks"]) > 20
    assert index.read_index()["parts"]["attacks"][0]["from"] == "built in"
    assert len(index.read_index()["constants"]) > 12
    assert "fedre_privacy.attacks.base: dip" in index.read_index()["files"]


def test_a_new_file_is_asked_for_what_it_registers(monkeypatch, capsys):
    lists.list_all(Output(as_json=False, quiet=False))
    usual = capsys.readouterr().out
    monkeypatch.setattr(lists, "_registries_imported", lambda: False)
    monkeypatch.setattr(lists, "read_index", lambda: {"files": [], "parts": {}})
    lists.list_all(Output(as_json=False, quiet=False))
    assert capsys.readouterr().out == usual


def test_a_constant_that_the_index_lacks_is_imported():
    assert index.indexed_constant(Constant("fedre_privacy.core.lock:WAIT_SECONDS")) == 0.2
    assert index.indexed_constant("as it is") == "as it is"


def test_what_is_printed_is_the_same(capsys):
    for flags in ([], ["--json"]):
        ((_, code, said, _),) = asked([["attack", "list", *flags]])
        lists.list_all(Output(as_json=bool(flags), quiet=False))  # of the registries, imported here
        assert code == 0 and said == capsys.readouterr().out


def test_parts_of_another_package_are_asked_for(tmp_path, monkeypatch):
    assert not registry.has_plugins()
    folder: Path = tmp_path / "others-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[fedre_privacy.attacks]\nfar = far.attacks:Far\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.has_plugins()
    monkeypatch.setattr(lists, "_registries_imported", lambda: False)
    monkeypatch.setattr(lists, "read_index", lambda: pytest.fail("its parts would be missing"))
    lists.list_all(Output(as_json=False, quiet=True))
