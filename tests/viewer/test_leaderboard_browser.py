"""The leaderboard in a real browser, at three widths and in both colour schemes."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedre_privacy as fp
from fedre_privacy.publish.claims import read_claim
from fedre_privacy.publish.format import hash_content, write
from fedre_privacy.publish.leaderboard import write_leaderboard
from fedre_privacy.publish.names import SCORES, TOLERANCE
from fedre_privacy.publish.repetition import plan, verify_claim

pytestmark = pytest.mark.slow

LUMINANCE = """
function lum(c) { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(
  v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; }
function ground(e) { while (e) { const c = getComputedStyle(e).backgroundColor;
  if (!/rgba\\(0, 0, 0, 0\\)|transparent/.test(c)) return c; e = e.parentElement; }
  return 'rgb(255,255,255)'; }
function contrast(e) { const a = lum(getComputedStyle(e).color), b = lum(ground(e));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }
"""
WEAKEST = (
    f"(() => {{ {LUMINANCE} return Math.min(...[...document.querySelectorAll("
    "'p, td, th, small, strong, dt, dd, a, summary, h1, h2')].map(contrast)); })()"
)


@pytest.fixture(scope="module")
def page(small, tmp_path_factory) -> Path:
    """Claims of three attacks: one that repeats, one that does not, one not repeated yet."""
    folder = tmp_path_factory.mktemp("claims")
    for result in (small.pixel, small.linear, small.labels):
        (path,) = fp.claim(result.folder, folder / f"{result.folder.name}.json", by="Ada")
        claim = read_claim(path)
        if result is small.labels:
            continue
        wanted = plan(claim, run=small.run.folder, part=SCORES)
        done = verify_claim(wanted, small.run, result, tolerance=TOLERANCE, by="Bob")
        if result is small.pixel:
            lie = {name: getattr(claim, name) for name in claim.__struct_fields__}
            claim = hash_content(type(claim), {**lie, "verdict": "leaks everything"})
            write(path, claim)
            done = verify_claim(plan(claim, run=small.run.folder, part=SCORES), small.run, result,
                            tolerance=TOLERANCE, by="Bob")  # fmt: skip
        write(path.with_suffix(".verification.json"), done)
    (folder / "broken.json").write_text("{" + "x" * 300)
    return write_leaderboard(folder)[0]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000, 1920])
def test_the_page_fits_is_readable_and_asks_for_nothing(page, browse, width, dark):
    with browse(width, dark=dark) as browser:
        browser.open(page)
        browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(WEAKEST) >= 4.5
        shown = browser.run(
            "[...document.querySelectorAll('.status')].map(e => [e.textContent, "
            "e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().right <= innerWidth])"
        )
        assert sorted(shown) == [
            ["DOES NOT REPEAT", True], ["not repeated yet", True], ["repeats", True],
        ]  # fmt: skip
        roles = browser.run(
            "[...document.querySelectorAll('table.board tr')].every(r => [...r.children].every("
            "c => ['cell', 'columnheader', 'rowheader'].includes(c.getAttribute('role'))))"
        )
        assert roles
        assert browser.problems == []
        assert all(url.startswith(("file:", "data:", "about:")) for url in browser.requests)


def test_a_narrow_page_names_each_cell(page, browse):
    label = "getComputedStyle(document.querySelector('td[data-label=Status]'), '::before').content"
    with browse(390) as browser:
        browser.open(page)
        assert browser.run(label) == '"Status"'
        browser.resize(1000)
        assert browser.run(label) == "none"
