"""Pages for users are short and plain, links lead somewhere, and results are made of data."""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

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
def build() -> Iterator[ModuleType]:
    found = importlib.util.spec_from_file_location("results_build", ROOT / "results" / "build.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "results")
        found.loader.exec_module(module)
        yield module
        sys.modules.pop("figures")


@pytest.fixture(scope="module")
def figures(build) -> Mapping[str, Any]:
    """The figures of the pages, as they are described."""
    return build.read_figures(ROOT / "results" / "figures.yaml")


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
def test_a_page_of_results_is_what_its_data_give(page, build, figures):
    text = page.read_text(encoding="utf-8")
    built = build.build(text, ROOT / "results" / "data", figures)
    assert built == text, "run: python results/build.py"


def test_figures_are_drawn_from_the_data_that_are_there(build, figures):
    data, drawn = ROOT / "results" / "data", ROOT / "results" / "figures"
    assert {path.stem for path in drawn.iterdir()} == set(figures)
    shown = "".join(page.read_text(encoding="utf-8") for page in RESULTS)
    for figure, described in figures.items():
        path = drawn / f"{figure}.svg"
        assert build.is_current(path, described, data), "run: python results/build.py"
        assert path.stat().st_size < 60_000, figure
        assert f"<!-- figure: {figure} -->" in shown, figure


def test_a_figure_is_the_same_bytes_twice_and_other_bytes_of_other_data(build, tmp_path):
    rows = 'way,found (guess)\na,"1.5 [1.2, 1.9] (0.5)"\nb,-\nc,"+2,000 ± 4"\n'
    (tmp_path / "two.csv").write_text(rows, encoding="utf-8")
    source = "{table: two, values: {x: found (guess)}, guess: brackets}"
    text = f"f: {{alt: A & b, axis: dB, from: [{source}]}}"
    (tmp_path / "figures.yaml").write_text(text, encoding="utf-8")
    figure = build.read_figures(tmp_path / "figures.yaml")["f"]
    drawn = build.draw(figure, tmp_path)
    assert drawn == build.draw(figure, tmp_path)
    assert "<title>A &amp; b</title>" in drawn and ">c</text>" in drawn and ">b</text>" not in drawn
    path = tmp_path / "f.svg"
    path.write_text(drawn, encoding="utf-8")
    assert build.is_current(path, figure, tmp_path)
    (tmp_path / "two.csv").write_text(rows.replace("0.5", "0.6"), encoding="utf-8")
    assert not build.is_current(path, figure, tmp_path)
    (tmp_path / "two.csv").write_text("way,found (guess)\na,-\n", encoding="utf-8")
    with pytest.raises(ValueError, match="nothing to draw"):
        build.draw(figure, tmp_path)


@pytest.mark.parametrize(
    ("cell", "value", "low", "high", "brackets"),
    [("**+7.63 [4.44, 10.82]**", 7.63, 4.44, 10.82, None), ("1,024 ± 2 (3)", 1024, 1022, 1026, 3),
     ("4.0 % [1.7, 7.7]", 4.0, 1.7, 7.7, None), (".92 / .51", 0.92, None, None, None),
     ("+0.34 dB [-0.48, 1.17]; all", 0.34, -0.48, 1.17, None), ("2e-08", 2e-8, None, None, None)],
)  # fmt: skip
def test_a_cell_of_a_table_is_read(cell, value, low, high, brackets, build):
    read = sys.modules["figures"].read_cell
    found = read(cell)
    assert (found.value, found.low, found.high, found.guess) == (value, low, high, brackets)
    assert read("no bound") is None and read("-") is None and read("") is None


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


def test_a_table_goes_on_with_another_by_its_first_cells(build):
    others = [["defence", "claim"], ["b", "none falls"]]
    rows = [["defence", "n"], ["a", "3"], ["b", "4"], ["b", "5"]]
    assert build.joined(rows, others) == [
        ["defence", "n", "claim"],
        ["a", "3", "-"],
        ["b", "4", "none falls"],
        ["b", "5", "none falls"],
    ]
    with pytest.raises(ValueError, match="begins with: c"):
        build.joined(rows, [*others, ["c", "lost"]])


def test_all_data_are_shown_or_linked():
    shown = "".join(page.read_text(encoding="utf-8") for page in RESULTS)
    for path in (ROOT / "results" / "data").glob("*.csv"):
        named = re.search(rf"<!-- table: (\S+ with )?{path.stem}( with \S+)? -->", shown)
        assert named or f"data/{path.name})" in shown, path.name
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
