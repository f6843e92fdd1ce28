"""The page's bytes: what is in it, what is not, and what a stranger's text becomes."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedre_privacy.cli import view as command
from fedre_privacy.reports.viewer.entries import ResultEntry, Table
from fedre_privacy.reports.viewer.page import view, write_page
from fedre_privacy.reports.viewer.reader import collect

BLOCK = re.compile(r'<script type="([a-z/]+)" id="([0-9a-z]+)">([^<]*)</script>')


def blocks(page: str) -> dict[str, object]:
    """The JSON of a page by id."""
    return {
        name: json.loads(text)
        for kind, name, text in BLOCK.findall(page)
        if kind == "application/json"
    }


def pictures(page: str) -> list[np.ndarray]:
    """Every sheet of pictures inside a page."""
    texts = [text for kind, _, text in BLOCK.findall(page) if kind == "text/plain"]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in texts]


def tiles(page: str, size: int) -> set[bytes]:
    """Every picture of a page, whatever sheet it lies on."""
    out = set()
    for sheet in pictures(page):
        for y in range(0, sheet.shape[0], size):
            for x in range(0, sheet.shape[1], size):
                out.add(sheet[y : y + size, x : x + size].tobytes())
    return out


def images_of(result) -> set[bytes]:
    originals = (result.card.originals[:, 0].clamp(0, 1) * 255).round().byte().numpy()
    return {image.tobytes() for image in originals}


@pytest.mark.slow
def test_the_page_holds_everything_and_asks_for_nothing(small, tmp_path):
    page = view(small.runs, tmp_path / "page.html").path.read_text(encoding="utf-8")
    held = blocks(page)
    listed = held["index"]["entries"]
    assert len(listed) == 6 and {f"e{one['id']}" for one in listed} | {"index"} == set(held)
    attack = next(one for one in listed if one["facets"].get("attack") == "linear")
    targets = held[f"e{attack['id']}"]["targets"]
    assert targets["columns"]["psnr"] == [float(f"{v:.9g}") for v in small.linear.frame()["psnr"]]
    assert images_of(small.linear) <= tiles(page, 16)
    without = BLOCK.sub("", page)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttp|innerHTML|eval\(", without)
    assert "default-src 'none'" in page


@pytest.mark.slow
def test_without_the_truth_no_byte_of_it_is_there(small, tmp_path):
    whole = view(small.runs, tmp_path / "whole.html").path.read_text(encoding="utf-8")
    page = view(small.runs, tmp_path / "page.html", truth=False).path.read_text(encoding="utf-8")
    truth = images_of(small.linear)
    assert truth <= tiles(whole, 16) and not truth & tiles(page, 16)
    assert "PRIVATE" in whole and "PRIVATE" not in page
    held = blocks(page)
    assert held["index"]["truth"] is False
    for name, block in held.items():
        if name == "index":
            continue
        targets = block["targets"] or {"pictures": {}, "columns": {}}
        assert "truth" not in targets["pictures"] and block["report"] is None
        hidden = {"original", "member", "label", "count", "classes", "samples", "support_size"}
        assert not hidden & set(targets["columns"])
    # marks of the truth are numbers in the page, not hashes that others could look up
    keys = next(b["targets"]["keys"] for n, b in held.items() if n != "index" and b["targets"])
    assert all(key < 1000 for key in keys)


@pytest.mark.slow
def test_a_folder_has_its_pictures_beside_it_and_none_of_before(small, tmp_path):
    out = tmp_path / "site"
    made = view(small.runs, out)
    assert made.path == out / "index.html"
    before = {path.name for path in (out / "pictures").iterdir()}
    (out / "pictures" / "mine.png").write_bytes(b"mine")
    page = made.path.read_text(encoding="utf-8")
    assert pictures(page) == [] and all(f"pictures/{name}" in page for name in before)
    view(small.runs, out, truth=False)
    after = {path.name for path in (out / "pictures").iterdir()}
    assert after < before | {"mine.png"} and "mine.png" in after
    sheets = [np.asarray(Image.open(out / "pictures" / name)) for name in after - {"mine.png"}]
    held = {
        sheet[y : y + 16, x : x + 16].tobytes()
        for sheet in sheets
        for y in range(0, sheet.shape[0], 16)
        for x in range(0, sheet.shape[1], 16)
    }
    assert not images_of(small.linear) & held


@pytest.mark.slow
def test_addresses_of_results_stay_when_others_come(small, tmp_path):
    entries = collect(small.runs)
    ids = []
    for shown in (entries, entries[2:]):
        page = write_page(shown, small.runs, tmp_path / "p.html", truth=True).read_text()
        ids.append({one["path"]: one["id"] for one in blocks(page)["index"]["entries"]})
    assert ids[1].items() <= ids[0].items()


EVIL = '</script><script>document.title="evil"</script><img src=x onerror=alert(1)> & \u202eend'


def test_text_of_strangers_ends_nothing_and_hides_nothing(tmp_path):
    entry = ResultEntry(
        "attack", f"a/{EVIL}", "damaged", EVIL, {"protocol": EVIL, "verdict": EVIL}, because=EVIL,
        flags={EVIL: EVIL}, facts={EVIL: EVIL}, tables=(Table(EVIL, [{EVIL: EVIL}]),),
        settings={"x": EVIL},
    )  # fmt: skip
    page = write_page([entry], tmp_path / EVIL.replace("/", ""), tmp_path / "p.html", truth=True)
    text = page.read_text(encoding="utf-8")
    assert text.count("</script>") == 3 and "<img" not in text and "\u202e" not in text
    assert blocks(text)["index"]["entries"][0]["problem"].startswith("</script><script>doc")


@pytest.mark.slow
def test_numbers_that_json_has_not_are_nothing(small, tmp_path):
    entry = dataclasses.replace(collect(small.runs)[1], accuracy=float("nan"))
    page = write_page([entry], small.runs, tmp_path / "p.html", truth=True).read_text()
    assert blocks(page)["index"]["entries"][0]["accuracy"] is None


@pytest.mark.slow
def test_the_command(small, tmp_path, capsys, opened):
    out = tmp_path / "v.html"
    assert command.main([str(small.runs), "--out", str(out), "--open"]) == 0
    assert opened == [out.resolve()]
    told = capsys.readouterr().out
    assert "3 attacks" in told and "PRIVATE" in told and str(out) in told
    assert command.main([str(small.runs), "--out", str(out), "--without-truth", "--quiet"]) == 0
    assert Path(capsys.readouterr().out.strip()) == out
    assert command.main([str(small.runs), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["shown"]["attack"] == 3
    assert command.main([str(tmp_path / "nothing")]) == 4
    assert "No folder" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["view.html"])
def test_without_a_place_it_is_beside_the_runs(small, name):
    made = view(small.runs)
    try:
        assert made.path == small.runs / name
        assert len(view(small.runs).entries) == len(made.entries)  # it does not show itself
    finally:
        made.path.unlink()
