"""Pages of single results in a real browser: the first screen, both schemes, targets, tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedre_privacy.eval.report import image_sheet, save_figure

pytestmark = pytest.mark.slow

KINDS = ["pixel", "linear", "labels", "audit"]
BOX = "(() => {{ const r = document.querySelector({!r}).getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; }})()"  # noqa: E501
TITLE = "document.querySelector('dialog h3').textContent"


def pixels(browser, path: Path) -> np.ndarray:
    """What is seen, (height, width, 3)."""
    browser.shot(path)
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_screen_is_complete(kind, width, small, browse):
    with browse(width) as browser:
        browser.open(getattr(small, kind).folder / "report.html", shown="h1")
        words = browser.run("document.querySelector('h1').textContent")
        assert words.endswith(", FedAllRep")
        assert browser.run("document.querySelector('.verdict svg path') !== null")
        assert browser.run("document.querySelectorAll('.lead > figure').length") == 1
        verdict, figure = (browser.run(BOX.format(one)) for one in (".verdict", ".lead > figure"))
        assert verdict[3] <= 900 and figure[3] <= 900
        assert figure[2] - figure[0] > 300


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_fits_every_window_and_asks_for_nothing(kind, dark, small, browse):
    with browse(390, dark=dark) as browser:
        for width in (390, 1280, 1920):
            browser.resize(width)
            browser.open(getattr(small, kind).folder / "report.html", shown="h1")
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run("[...document.images].every(i => i.complete && i.naturalWidth)")
        assert browser.problems == []
        assert all(url.startswith(("file:", "data:", "about:")) for url in browser.requests)


def test_figures_follow_the_colour_scheme_and_pictures_do_not(tmp_path, browse):
    white = torch.ones(3, 1, 16, 16)
    figure = image_sheet({"truth": white}, ["one", "two", "three"], title="White pictures")
    save_figure(figure, tmp_path / "sheet")
    page = tmp_path / "page.html"
    page.write_text(
        "<style>:root { color-scheme: light dark } body { margin: 0 }</style><h1>A</h1>"
        "<img src='sheet.svg' width=520>"
    )
    seen = {}
    for dark in (False, True):
        with browse(800, height=700, dark=dark) as browser:
            browser.open(page, shown="img")
            browser.wait("document.images[0].complete && document.images[0].naturalWidth > 0")
            left, top, right, bottom = map(round, browser.run(BOX.format("img")))
            seen[dark] = pixels(browser, tmp_path / "seen.png")[top:bottom, left:right].astype(int)
    assert seen[False][2, 2].tolist() == [255, 255, 255]
    assert seen[True][2, 2].tolist() == [22, 22, 22]
    # of the light figure all that is no ink is white; of the dark one the pictures alone are
    still = (seen[True].min(2) > 250).mean()
    assert 0.05 < still < 0.5 < (seen[False].min(2) > 250).mean()
    assert (seen[True].min(2) > 200).mean() > still + 0.002  # words


def test_targets_are_a_grid_of_which_each_is_enlarged(small, browse):
    with browse(1280) as browser:
        browser.open(small.linear.folder / "report.html", shown="h1")
        tiles = "document.querySelectorAll('.targets.tiles > .target')"
        assert browser.run(f"{tiles}.length") == 12
        tops = browser.run(f"[...{tiles}].map(e => e.offsetTop)")
        assert len(set(tops)) <= 3  # four at least side by side
        scores = "[...document.querySelectorAll('.target dl')].some(e => e.offsetHeight)"
        assert not browser.run(scores)
        browser.click(".target:nth-child(2) img")
        browser.wait("document.querySelector('dialog').open")
        second = browser.run(TITLE)
        assert browser.run("document.querySelectorAll('dialog img').length") == 3
        assert browser.run("document.querySelector('dialog img').offsetWidth") > 250
        assert "PSNR" in browser.run("document.querySelector('dialog dl').textContent")
        browser.key("ArrowRight")
        browser.wait(f"{TITLE} !== {json.dumps(second)}")
        third = browser.run(TITLE)
        browser.key("ArrowLeft")
        browser.wait(f"{TITLE} === {json.dumps(second)}")
        browser.click_text("dialog button", "Next")
        browser.wait(f"{TITLE} === {json.dumps(third)}")
        browser.key("Escape")
        browser.wait("!document.querySelector('dialog').open")
        browser.wait(f"document.activeElement.textContent === {json.dumps(third)}")
        browser.key("Enter")
        browser.wait("document.querySelector('dialog').open")
        browser.click_text("dialog button", "Close")
        browser.wait("!document.querySelector('dialog').open")
        # a figure opens too, and a click on it closes it
        browser.click(".figures button.zoom")
        browser.wait("document.querySelector('dialog > img')?.naturalWidth > 0")
        browser.click("dialog > img")
        browser.wait("!document.querySelector('dialog').open")
        assert browser.problems == []


def test_a_click_on_a_heading_sorts_by_number_and_a_second_one_the_other_way(small, browse):
    with browse() as browser:
        browser.open(small.linear.folder / "report.html", shown="h1")
        cells = (
            "(() => { const t = [...document.querySelectorAll('table.sortable')].find(t => "
            "[...t.tHead.rows[0].cells].some(c => c.textContent === 'psnr_floor'));"
            "const at = [...t.tHead.rows[0].cells].findIndex(c => c.textContent === 'psnr');"
            "t.tHead.rows[0].cells[at].id = 'head';"
            "return [...t.tBodies[0].rows].map(r => r.cells[at].dataset.value); })()"
        )
        browser.run(cells)
        for order in ("ascending", "descending"):
            browser.click("#head button")
            values = [float(value) for value in browser.run(cells) if value]
            assert values == sorted(values, reverse=order == "descending") and len({*values}) > 2
            assert browser.run("document.getElementById('head').ariaSort") == order


def test_a_page_of_an_audit_says_what_was_played(small, browse):
    with browse() as browser:
        browser.open(small.audit.folder / "report.html", shown="h1")
        words = browser.run("document.querySelector('.verdict').textContent")
        found = small.audit.found
        assert f"{found.right} of {found.trials} coins were guessed right" in words
        assert "Blind guesses are right in 50%" in words
