"""Pages for users are short and plain, links lead somewhere, and results are made of data."""

from __future__ import annotations

import csv
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
"""Pages for users. Reference pages that the site makes of docstrings are not among them."""

RESULTS = sorted((ROOT / "results").glob("*.md"))
MOST_WORDS = 30_000
"""Of all pages for users; code blocks, tables and pictures are not counted."""

LONGEST_SENTENCE = 30
DECIMALS_IN_100_WORDS = 2
LONGEST_PARAGRAPH = 120
"""Words of the one paragraph that a table of results has."""

MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
DATE = re.compile(rf"\b\d{{1,2}} (?:{MONTH})\b|\b(?:{MONTH}) \d|\b20\d\d-\d\d-\d\d\b")
DECIMAL = re.compile(r"(?<![\w.])\d*\.\d+(?!\w|\.\d)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def paragraphs(text: str) -> list[str]:
    """The paragraphs and list items of a page, without code, tables, pictures and headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!-- (?:table|results): .*?<!-- end -->", "", text, flags=re.DOTALL)
    kept = []
    for line in text.splitlines():
        skipped = line.lstrip().startswith(("|", "![", "#", "<", "---"))
        kept.append("" if skipped or line.startswith("    fedre-") else line)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )|\n(?=:  )", "\n".join(kept))
    return [" ".join(part.split()) for part in parts if part.strip()]


def spoken(paragraph: str) -> str:
    """A paragraph as it is read: a link is its text, and a piece of code is one word."""
    paragraph = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    paragraph = re.sub(r"`[^`]*`", "code", paragraph)
    return re.sub(r"^(?:[*-]|\d+\.|:) +", "", paragraph).replace("*", "")


def sentences(paragraph: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+|(?<=[.!?][)\"])\s+", spoken(paragraph))


def private_words() -> list[str]:
    """What the glossary asks pages not to say."""
    section = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("## Words to avoid")
    return re.findall(r"^\| ([^|`]+?) \|", section[1], re.MULTILINE)[1:]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    found = importlib.util.spec_from_file_location("results_build", ROOT / "results" / "build.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- the guide ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", GUIDE, ids=name)
def test_a_page_for_users_is_plain(page):
    parts = paragraphs(page.read_text(encoding="utf-8"))
    words = " ".join(map(spoken, parts))
    faults = [
        f"{len(one.split())} words: {one}"
        for part in parts
        for one in sentences(part)
        if len(one.split()) > LONGEST_SENTENCE
    ]
    decimals = DECIMAL.findall(words)
    if len(decimals) > DECIMALS_IN_100_WORDS * max(len(words.split()), 100) / 100:
        faults.append(f"{len(decimals)} decimal numbers in {len(words.split())} words")
    faults += [f"a date: {found}" for found in DATE.findall(words)]
    if page.name != "glossary.md":
        faults += [f"says {w!r}" for w in private_words() if re.search(rf"\b{w}\b", words, re.I)]
    assert faults == []


def test_the_guide_is_short():
    counts = {
        name(page): sum(
            len(spoken(part).split()) for part in paragraphs(page.read_text(encoding="utf-8"))
        )
        for page in GUIDE
    }
    assert sum(counts.values()) <= MOST_WORDS, sorted(counts.items(), key=lambda c: -c[1])[:10]


def test_faults_of_a_page_are_seen():
    page = "# Title 1.5\n\n```\n0.1 0.2\n```\n\n| 1.5 | 2.5 |\n\nOne 1.5. Two\n2.5 (a).\n"
    (part,) = paragraphs(page)
    assert sentences(part) == ["One 1.5.", "Two 2.5 (a)."]
    assert DECIMAL.findall(part) == ["1.5", "2.5"]
    assert DATE.search("on 24 November") and DATE.search("2026-11-24")
    assert not DATE.search("may 1 be") and not DATE.search("version 2.15")
    assert spoken("* [a b](c.md) and `d e`") == "a b and code"
    assert len(private_words()) > 5


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RESULTS, ids=name)
def test_a_page_of_results_is_what_its_data_give(page, build):
    text = page.read_text(encoding="utf-8")
    assert build.build(text, ROOT / "results" / "data") == text, "run: python results/build.py"


@pytest.mark.parametrize("page", RESULTS, ids=name)
def test_a_page_of_results_begins_with_the_answer_and_each_table_has_a_paragraph(page):
    text = page.read_text(encoding="utf-8")
    if page.name == "index.md":
        return
    first, *_, foot = paragraphs(text)
    assert first.startswith("**"), "the answer comes first"
    assert re.search(rf"20\d\d|{MONTH}", foot) and "commit" in foot.lower(), "the foot"
    pieces = re.split(r"<!-- (?:table|results): .*?<!-- end -->", text, flags=re.DOTALL)
    for piece in pieces[1:]:
        own = paragraphs(piece.split("\n---\n")[0])
        assert len(own) <= 1, own
        assert all(len(spoken(part).split()) <= LONGEST_PARAGRAPH for part in own), own


def test_all_data_are_shown_or_linked():
    shown = "".join(page.read_text(encoding="utf-8") for page in RESULTS)
    for path in (ROOT / "results" / "data").glob("*.csv"):
        assert f"table: {path.stem} -->" in shown or f"data/{path.name})" in shown, path.name
        with path.open(encoding="utf-8", newline="") as file:
            widths = {len(row) for row in csv.reader(file)}
        assert len(widths) == 1, path.name


# --- links ----------------------------------------------------------------------------------------


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub and the site make it."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(found) for found in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def links() -> Iterator[tuple[Path, str]]:
    books = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for page in [*ROOT.glob("*.md"), *GUIDE[1:], *RESULTS, *books]:
        text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in LINK.findall(text):
            if "://" not in target and not target.startswith("data:"):
                yield page, target


def test_links_lead_somewhere():
    made = {f"{one}.md" for one in MADE_BY_THE_SITE}
    wrong = []
    for page, target in links():
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if to.parent == ROOT / "docs" / "reference" and to.name in made:
            continue
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            wrong.append(f"{name(page)}: {target}")
    assert wrong == []


MADE_BY_THE_SITE = (
    "attacks", "protocols", "schemes", "defences", "steerings", "detectors", "shadow-attacks",
    "metrics", "datasets", "partitions", "fedre-attack", "fedre-train", "fedre-benchmark",
    "fedre-audit", "fedre-membership", "fedre-view",
)  # fmt: skip


def test_pages_that_errors_name_exist():
    rooms = ("fedre_privacy", "attacks", "defenses", "eval")
    for path in (path for room in rooms for path in (ROOT / room).rglob("*.py")):
        for found in re.findall(r"\b((?:docs|results)/\w+\.md)", path.read_text("utf-8")):
            assert (ROOT / found).is_file(), f"{path}: {found}"
