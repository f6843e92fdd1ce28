"""The documentation builds as a site, every link leads somewhere, and nothing is fetched."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedre_privacy.attacks.base import attacks
from fedre_privacy.data.base import datasets
from fedre_privacy.protocols.base import protocols

pytestmark = pytest.mark.slow


class Loads(HTMLParser):
    """What a page loads by itself: scripts, styles, pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.unnamed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.found.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "preconnect", "icon"):
            self.found.append(str(given["href"]))
        if tag == "img" and not given.get("alt"):
            self.unnamed.append(str(given.get("src")))


def test_every_part_is_in_the_reference(site: Path) -> None:
    for name in attacks.names():
        text = (site / "reference" / "attacks" / f"{name}.html").read_text()
        assert f"--attack {name}" in text and "When to use it" in text, name
    for page, registry in (("protocols", protocols), ("datasets", datasets)):
        text = (site / "reference" / f"{page}.html").read_text()
        assert {name for name in registry.names() if f'id="{name}"' not in text} == set()
        assert "<class>" not in text and "&amp;lt;" not in text


def test_commands_and_results_have_pages(site: Path) -> None:
    for name in ("train", "attack", "benchmark", "audit", "membership", "view"):
        text = (site / "reference" / f"fedre-{name}.html").read_text()
        assert f"usage: fedre-{name}" in text and "<code>--json</code>" in text, name
    for path in (Path(__file__).parents[2] / "results").glob("*.md"):
        page = (site / "results" / f"{path.stem}.html").read_text()
        assert page.count("<table") >= path.read_text("utf-8").count("<!-- table: "), path.name


def test_functions_show_their_arguments(site: Path) -> None:
    text = (site / "reference" / "functions.html").read_text()
    for name in ("train", "attack", "benchmark", "attack_module"):
        assert re.search(rf'id="[a-z_.]*\.{name}"', text), name
    assert "isolation" in text


def test_pages_load_nothing_from_elsewhere_and_pictures_are_described(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert [one for one in loads.found if "//" in one] == [], page.name
        assert loads.unnamed == [], page.name
        missing = [
            one
            for one in loads.found
            if not one.startswith("data:")
            and not (page.parent / re.split("[?#]", one)[0]).is_file()
        ]
        assert page.name == "404.html" or missing == [], page.name


def test_search_works_in_pages_opened_as_files(site: Path, chromium: str, tmp_path: Path) -> None:
    page = f"{(site / 'index.html').as_uri()}?q=canary"
    shown = subprocess.run(
        [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
         f"--user-data-dir={tmp_path}", "--dump-dom", page],
        capture_output=True, text=True, timeout=180,
    ).stdout  # fmt: skip
    assert re.search(r"[0-9]+ matching documents", shown)
    assert "auditing.html" in shown
