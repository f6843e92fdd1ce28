"""Each attack has a page made of what it declares, with a command that is not refused."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedre_privacy.attacks.base import attacks
from fedre_privacy.cli.attack import parser
from fedre_privacy.core.config import knobs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    pytest.importorskip("mkdocs")
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        return importlib.import_module("attack_pages")
    finally:
        sys.path.pop(0)


def test_every_attack_has_a_page_with_what_it_declares(pages):
    listed = pages.list_page()
    assert set(pages.built_in()) <= set(attacks.names())
    for name, attack in pages.built_in().items():
        text = pages.page(name, attack)
        assert f"](attacks/{name}.md)" in listed and attack.when_to_use in text
        assert all(f"| `{one.name}` |" in text for one in knobs(attack)), name
        assert all(f"`{known}`" in text for known in attack.needs), name
        command = next(line for line in text.splitlines() if line.startswith("fedre-attack "))
        asked = parser().parse_args(shlex.split(command)[1:])
        assert vars(asked)["attack"] == name


def test_pages_of_results_that_attacks_name_speak_of_them(pages):
    for name, attack in pages.built_in().items():
        for result in attack.measured_on:
            own = [*(ROOT / "results" / "data").glob(f"{result}*.csv")]
            texts = [p.read_text("utf-8") for p in (ROOT / "results" / f"{result}.md", *own)]
            assert any(name in text.lower() for text in texts), f"{name}: {result}"


def test_an_attack_that_nothing_uploads_for_is_given_a_run(pages, monkeypatch):
    assert "RUN" not in pages.command("dip")
    monkeypatch.setattr(attacks.get("dip"), "consumes", ())
    assert pages.command("dip") == "fedre-attack RUN --attack dip"
