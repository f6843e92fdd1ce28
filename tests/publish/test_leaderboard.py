"""The page of claims: grouped, sorted, flagged, harmless, and in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedre_privacy.cli import benchmark
from fedre_privacy.core.errors import MissingInputError
from fedre_privacy.publish.claims import read_claim
from fedre_privacy.publish.comparison import contradiction
from fedre_privacy.publish.format import Verification, write
from fedre_privacy.publish.leaderboard import UNCHECKED, collect, write_leaderboard
from fedre_privacy.publish.names import OTHERWISE, REPEATS

from .conftest import edited

Edit = Callable[[dict[str, Any]], object]


class Cells(HTMLParser):
    """Tables of a page as rows of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tables[-1][-1][-1] += " ".join(data.split()) + " "


def higher(by: float, name: str) -> Edit:
    """A claim of more leakage."""

    def edit(content: dict[str, Any]) -> None:
        numbers = content["measures"][0]["numbers"]
        numbers.update(value=numbers["value"] + by, over=numbers["over"] + by)
        content["by"] = name

    return edit


def other_adversary(content: dict[str, Any]) -> None:
    content["settings"]["threat"] = content["what"]["threat"] = "strong"
    content["command"] = content["command"].replace('"fedre-paper"', '"strong"')


@pytest.fixture
def folder(scored, forge, tmp_path) -> Path:
    """An honest claim that was repeated, a lie that was, one that was not, another question."""
    place = tmp_path / "claims"
    for name, edit in (
        ("honest", None), ("lie", higher(9.0, "Eve <b>")), ("waiting", higher(-1.0, "")),
        ("apart", other_adversary),
    ):  # fmt: skip
        path = forge(edit, name=f"{name}.json")
        (place / "in").mkdir(parents=True, exist_ok=True)
        path.rename(place / "in" / path.name)
    for name in ("honest", "lie"):
        claim = read_claim(place / "in" / f"{name}.json")
        write(place / f"{name}.verification.json", scored(claim, by="Bob"))
    return place


def test_claims_are_grouped_sorted_and_flagged(folder):
    path, board = write_leaderboard(folder)
    assert path == folder / "leaderboard.html"
    one, other = board.questions()
    assert [posted.file for posted in other] == ["in/apart.json"]
    # ranked by what was repeated, so that the lie ties with the honest claim
    assert [posted.file for posted in one][2] == "in/waiting.json"
    assert {p.file: p.status for p in one} == {
        "in/honest.json": REPEATS, "in/lie.json": OTHERWISE, "in/waiting.json": UNCHECKED,
    }  # fmt: skip
    rows = Cells(path.read_text()).tables[0]
    assert [text.strip() for text in rows[0]] == [
        "Place", "Protocol", "Attack", "Seed", "n", "Accuracy", "Claimed", "Re-attacked", "Status",
    ]  # fmt: skip
    by_status = {row[8].split("scored")[0].strip(): row for row in rows[1:]}
    assert set(by_status) == {"repeats", "DOES NOT REPEAT", UNCHECKED}
    lie, honest = by_status["DOES NOT REPEAT"], by_status["repeats"]
    assert lie[7] == honest[7] and lie[6] != honest[6] and by_status[UNCHECKED][7].strip() == "-"
    assert "by Bob" in lie[8]


def test_the_page_is_harmless_and_asks_for_nothing(folder):
    text = write_leaderboard(folder)[0].read_text()
    assert text.lstrip().startswith("<!DOCTYPE html>") and "Eve &lt;b&gt;" in text
    page = Cells(text)
    assert "Eve <b>" in " ".join(" ".join(row) for row in page.tables[0])
    assert not [tag for tag, _ in page.tags if tag in ("script", "b", "img", "iframe")]
    places = [given.get(k) for _, given in page.tags for k in ("src", "href") if given.get(k)]
    assert all(place.startswith(("#", "data:")) for place in places)
    assert "default-src 'none'" in text


def test_tables_can_be_heard(folder):
    page = Cells(write_leaderboard(folder)[0].read_text())
    ids = [given["id"] for _, given in page.tags if "id" in given]
    assert len(ids) == len(set(ids))
    boards = [given for tag, given in page.tags if tag == "table" and given.get("class") == "board"]
    assert boards and all(given["aria-labelledby"] in ids for given in boards)
    heads = [given for tag, given in page.tags if tag == "th"]
    assert heads and all(given.get("scope") in ("col", "row") for given in heads)


def test_refused_files_are_listed_with_the_reason(folder, published):
    (folder / "broken.json").write_text("{")
    (folder / "other.json").write_text('{"schema": "something"}')
    (folder / "copy.json").write_bytes((folder / "in" / "honest.json").read_bytes())
    (folder / "link.json").symlink_to(published.path)
    content = json.loads((folder / "lie.verification.json").read_text())
    for name, edit in (
        ("stray", lambda c: c.update(claim="0" * 64)),
        ("swapped", lambda c: c.update(claim=published.content()["sha256"])),
        ("better", lambda c: c.update(outcome=REPEATS)),
        ("kinder", lambda c: c.update(tolerance=10.0, due=False, outcome=REPEATS)),
    ):
        made = edited(json.loads(json.dumps(content)), edit)
        (folder / f"{name}.json").write_text(json.dumps(made))
    path, board = write_leaderboard(folder)
    assert {name: reason.split(":")[0] for name, reason in board.refused.items()} == {
        "broken.json": "is not valid JSON",
        "other.json": "calls its schema 'something', not fedre-privacy/claim or "
        "fedre-privacy/verification",
        "in/honest.json": "is the same claim as copy.json",
        "stray.json": "is of a claim that is not in this folder",
        "swapped.json": "says of the claim what the claim does not say",
        "better.json": "names an outcome that does not follow from its numbers",
        "kinder.json": "names an outcome that does not follow from its numbers",
    }
    assert board.count(OTHERWISE) == 1
    listed = Cells(path.read_text()).tables[-1]
    assert {row[0].strip() for row in listed[1:]} == set(board.refused)


CONTRADICTIONS = {
    "another claimed value": (
        lambda c: c["measures"][0]["claimed"].update(value=1.0), "says of the claim"),
    "a measure that is left out": (lambda c: c["measures"].pop(), "says of the claim"),
    "a measure twice": (lambda c: c["measures"].append(c["measures"][0]), "twice"),
    "uploads that were not made": (lambda c: c.update(uploads_same=True), "speaks of uploads"),
    "a training that was not": (lambda c: c.update(part="training"), "says of the claim"),
    "another repeated value": (
        lambda c: c["measures"][0]["repeated"].update(value=1.0), "does not follow"),
    "another verdict": (lambda c: c.update(verdict="other"), "does not follow"),
    "other versions": (
        lambda c: c["made"]["versions"].update(torch="1.0"), "does not follow"),
    "nothing": (
        lambda c: c["measures"].append({"key": "x", "group": "", "claimed": None,
                                        "repeated": None}), "nothing with nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_verification_that_contradicts_itself_counts_nothing(edit, words, published, scored):
    claim = read_claim(published.path)
    done = scored(claim)
    assert contradiction(done, claim) == ""
    content = edited(msgspec.to_builtins(done), edit)
    assert words in contradiction(msgspec.convert(content, Verification), claim)


def test_a_folder_without_a_claim_is_refused(tmp_path):
    with pytest.raises(MissingInputError, match="No folder at"):
        collect(tmp_path / "none")
    with pytest.raises(MissingInputError, match="holds no claim"):
        collect(tmp_path)
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(MissingInputError, match=r"holds no claim.*x\.json, holds no keys"):
        collect(tmp_path)


def test_the_command_says_what_it_shows(folder, capsys, opened):
    page = ["--out", str(folder / "x.html"), "--open"]
    assert benchmark.main(["leaderboard", str(folder), *page]) == 0
    assert opened == [(folder / "x.html").resolve()]
    said = capsys.readouterr().out
    assert "4 in 2 tables: 1 repeated, 1 did not repeat, 2 not repeated yet" in said
    assert (folder / "x.html").is_file()
    assert benchmark.main(["leaderboard", str(folder / "nowhere")]) == 4


def test_the_same_folder_gives_the_same_bytes(folder):
    first = write_leaderboard(folder)[0].read_bytes()
    assert write_leaderboard(folder)[0].read_bytes() == first
    assert not re.search(rb"\d\d:\d\d:\d\d", first)
