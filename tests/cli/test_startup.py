"""Help pages and lists come before anything large is imported, and say what the parts say."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedre_privacy.cli import lists
from fedre_privacy.cli.output import Output
from fedre_privacy.core import registry
from fedre_privacy.core.declared import Namespace, Shelf, Undeclared, declared

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


def test_a_list_read_from_text_is_that_of_the_registries():
    read, real = lists.gathered(Shelf), lists.gathered(lists.registry)
    assert read == real
    assert len(read["attacks"]) > 20 and read["attacks"][0]["from"] == "built in"


def test_what_is_printed_is_the_same(capsys):
    for flags in ([], ["--json"]):
        ((_, code, said, _),) = asked([["attack", "list", *flags]])
        lists.list_all(Output(as_json=bool(flags), quiet=False))  # of the registries, imported here
        assert code == 0 and said == capsys.readouterr().out


@pytest.mark.parametrize("home", lists.HOMES)
def test_names_read_from_text_are_those_registered(home):
    read, real = Shelf(home), lists.registry(home)
    assert (read.what, read.package) == (real.what, real.package)
    named = [(entry.name, module_of(entry.origin)) for entry in real.entries()]
    assert [(entry.name, entry.origin) for entry in read.entries()] == named


def module_of(origin: str) -> str:
    """The module of a class, or of a value that a module registers."""
    return origin if origin in sys.modules else origin.rpartition(".")[0]


def test_words_of_help_pages_are_those_of_the_modules(repo):
    found = set()
    for path in (repo / "fedre_privacy" / "cli").rglob("*.py"):
        text = path.read_text(encoding="utf-8").replace('declared(settings, ', (
            'declared("fedre_privacy.runs.settings", '))  # fmt: skip
        found |= set(re.findall(r'declared\(\s*"([\w.]+)",\s*"(\w+)"', text))
    assert len(found) > 12
    for module, name in found:
        read, real = declared(module, name), getattr(importlib.import_module(module), name)
        if isinstance(real, dict):
            read, real = list(read), list(real)
        assert read == real, (module, name)


PART = '''"""A part."""

from __future__ import annotations

from typing import ClassVar

import torch

NAMES = ("one", "two")
FIRST, *_ = NAMES


class Base:
    """Of all.

One line of this text starts a line, as a statement would: NAMES = 3.
"""

    says: ClassVar[str] = FIRST + "!"


def doubled(value: torch.Tensor, times: int = 2) -> str:
    return value * times


class Part(Base, torch.nn.Module):
    size = len(NAMES)
    twice = doubled("ab")
    device = torch.device("cpu")
'''


def test_a_file_is_read_as_it_is_now(tmp_path):
    path = tmp_path / "part.py"
    path.write_text(PART)
    part = Namespace("fedre_privacy.part", path).Part
    assert (part.__name__, part.size, part.says, part.twice) == ("Part", 2, "one!", "abab")
    path.write_text(PART.replace('"one", "two"', '"three",'))
    part = Namespace("fedre_privacy.part", path).Part
    assert (part.size, part.says) == (1, "three!")


def test_what_needs_a_library_is_refused_and_nothing_is_imported_for_it(tmp_path, monkeypatch):
    path = tmp_path / "part.py"
    path.write_text(PART)
    part = Namespace("fedre_privacy.part", path).Part
    with pytest.raises(Undeclared, match="torch would have to be imported"):
        _ = part.device
    with pytest.raises(Undeclared, match="declares no absent"):
        _ = part.absent
    with pytest.raises(Undeclared, match="no module"):
        declared("fedre_privacy.no_such_room", "NAME")


def test_a_part_that_cannot_be_read_is_imported(monkeypatch, capsys):
    def refuse(home: str) -> Shelf:
        raise Undeclared(home)

    lists.list_all(Output(as_json=False, quiet=False))
    usual = capsys.readouterr().out
    monkeypatch.setattr(lists, "Shelf", refuse)
    monkeypatch.setattr(lists, "_imported", lambda: False)
    lists.list_all(Output(as_json=False, quiet=False))
    assert capsys.readouterr().out == usual


def test_parts_of_another_package_are_asked_for(tmp_path, monkeypatch):
    assert not registry.brought()
    folder: Path = tmp_path / "others-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[fedre_privacy.attacks]\nfar = far.attacks:Far\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.brought()
    monkeypatch.setattr(lists, "_imported", lambda: False)
    monkeypatch.setattr(lists, "Shelf", lambda home: pytest.fail("its parts would be missing"))
    lists.list_all(Output(as_json=False, quiet=True))
