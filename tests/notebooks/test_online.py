"""The line that says where a notebook runs online, and the one place that has the address."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def online(repo: Path) -> dict[str, Any]:
    return runpy.run_path(str(repo / "notebooks" / "online.py"))


def test_a_notebook_keeps_all_but_the_line(repo, online):
    for path in sorted((repo / "notebooks").glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        once = online["with_link"](text, path.name, "owner-one/name-one")
        again = online["with_link"](once, path.name, "another/place")
        before, after = json.loads(text), json.loads(again)
        assert before["cells"][1:] == after["cells"][1:]
        assert before["metadata"] == after["metadata"]
        said = "".join(after["cells"][0]["source"])
        plain = "".join(before["cells"][0]["source"]).split("\n\n[Run it online](")[0]
        assert said.startswith(f"{plain}\n\n[Run it online](") and "owner-one" not in again
        assert f"/another/place/blob/main/notebooks/{path.name})" in said
        assert online["with_link"](again, path.name, "another/place") == again


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("https://github.com/owner/fedre-privacy", "owner/fedre-privacy"),
        ("https://github.com/owner/name.git", "owner/name"),
        ("https://github.com/owner/name/", "owner/name"),
        ("https://example.org/owner/name", None),
        ("https://github.com/owner", None),
        ("", None),
    ],
)
def test_the_address_is_a_repository_on_github(online, tmp_path, given, found):
    citation = tmp_path / "CITATION.cff"
    citation.write_text(f"title: x\nrepository-code: {given!r}\n", encoding="utf-8")
    if found:
        assert online["address"](citation) == found
    else:
        with pytest.raises(ValueError, match="Set it"):
            online["address"](citation)


def test_nothing_is_linked_but_the_address_that_is_set(online, repo):
    try:
        wanted = {online["address"]()}
    except ValueError:
        wanted = set()
    pages = [repo / "README.md", *repo.glob("docs/*.md"), *repo.glob("notebooks/*.ipynb")]
    text = "".join(path.read_text(encoding="utf-8") for path in pages)
    assert set(re.findall(r"colab\.research\.google\.com/github/([\w.-]+/[\w.-]+)", text)) == wanted
    assert text.count("git clone <address of the repository>") == (0 if wanted else 2)


def test_without_an_address_nothing_is_written(online, repo, tmp_path, capsys, monkeypatch):
    citation = tmp_path / "CITATION.cff"
    citation.write_text("title: x\n", encoding="utf-8")
    monkeypatch.setitem(online["main"].__globals__, "HERE", tmp_path)
    monkeypatch.setattr(online["address"], "__defaults__", (citation,))
    (tmp_path / "a.ipynb").write_text("kept", encoding="utf-8")
    assert online["main"]() == 2
    assert "repository-code" in capsys.readouterr().err
    assert (tmp_path / "a.ipynb").read_text() == "kept"


def test_with_an_address_pages_say_what_to_clone(online, tmp_path, monkeypatch):
    citation = tmp_path / "CITATION.cff"
    (tmp_path / "docs").mkdir()
    for place in (tmp_path / "README.md", tmp_path / "docs" / "installation.md"):
        place.write_text("git clone <address of the repository> here\n", encoding="utf-8")
    monkeypatch.setitem(online["main"].__globals__, "HERE", tmp_path / "notebooks")
    monkeypatch.setattr(online["address"], "__defaults__", (citation,))
    for name in ("one/first", "two/second"):
        citation.write_text(f"repository-code: https://github.com/{name}\n", encoding="utf-8")
        assert online["main"]() == 0
        assert (tmp_path / "README.md").read_text() == f"git clone https://github.com/{name} here\n"
