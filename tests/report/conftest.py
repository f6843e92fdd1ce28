"""Reading a page as a browser would, and one tiny run with attacks that the tests share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedre_privacy as fp
from fedre_privacy.api import AttackResult, Run

VOID = {"meta", "link", "img", "br", "input", "hr"}
TINY = {"data.size": 16, "data.per_class": 12, "record.keep_every": 1}


@dataclass
class Table:
    """A table as read back: headings, and (text, data-value) of each cell."""

    heads: list[str] = field(default_factory=list)
    rows: list[list[tuple[str, str | None]]] = field(default_factory=list)


class Reader(HTMLParser):
    """Collects what tests ask about, and every way in which the page is not well formed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.named: list[str] = []
        self.images: list[dict[str, str]] = []
        self.tables: list[Table] = []
        self.texts: dict[str, str] = {}
        self.words: list[str] = []
        self._value: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if len(given) != len(attrs):
            self.problems.append(f"<{tag}> repeats an attribute")
        if tag not in VOID:
            self.open.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        self.links += [given["href"]] if "href" in given else []
        self.sources += [given["src"]] if "src" in given else []
        self.named += [given["aria-labelledby"]] if "aria-labelledby" in given else []
        self.problems += [f"<{tag} {name}>" for name in given if name.startswith("on")]
        if tag == "img":
            self.images.append(given)
        elif tag == "table":
            self.tables.append(Table())
        elif tag == "tr" and "tbody" in self.open:
            self.tables[-1].rows.append([])
        elif tag == "th":
            self.tables[-1].heads.append("")
        elif tag == "td":
            self.tables[-1].rows[-1].append(("", given.get("data-value")))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes what is not open")

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        self.texts[inside] = self.texts.get(inside, "") + data
        if inside not in ("style", "script"):
            self.words.append(data)
        if "th" in self.open:
            self.tables[-1].heads[-1] += data
        elif "td" in self.open:
            row = self.tables[-1].rows[-1]
            row[-1] = (row[-1][0] + data, row[-1][1])


@pytest.fixture(scope="session")
def read() -> Callable[[str], Reader]:
    """Read a page; whatever is wrong with any page fails here."""

    def run(page: str) -> Reader:
        reader = Reader()
        reader.feed(page)
        reader.close()
        assert reader.problems == [] and reader.open == []
        assert len(reader.ids) == len(set(reader.ids))
        for link in reader.links:
            assert link == "data:," or not link.startswith(("http", "//", "data"))
            if link.startswith("#"):
                assert link[1:] in reader.ids
        assert set(reader.named) <= set(reader.ids)
        assert all(re.match(r"data:image/(png|svg\+xml);base64,", one) for one in reader.sources)
        assert all(image["alt"] for image in reader.images)
        for outside in ("http:", "https:", "@import", "url(", "fetch(", "XMLHttp"):
            assert outside not in reader.texts.get("style", "") + reader.texts.get("script", "")
        for table in reader.tables:
            assert all(len(row) == len(table.heads) for row in table.rows)
        return reader

    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs."""
    return tmp_path_factory.mktemp("report") / "runs"


@pytest.fixture(scope="session")
def run(runs: Path) -> Run:
    """One trained FedRE run of a second."""
    return fp.train("fedre", clients=4, rounds=2, set=TINY, runs=runs, device="cpu")


@pytest.fixture(scope="session")
def attacked(run: Run) -> AttackResult:
    """A counterfactual attack on its prototypes."""
    return fp.attack(
        run, "pixel", "prototypes", targets=6, set={"attack.steps": 2, "eval.ceiling": 2},
        device="cpu",
    )  # fmt: skip
