"""The documentation in a real browser: figures and tables on wide and narrow screens."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

FIGURE = "document.querySelector('p.figure img')"


@pytest.mark.parametrize("dark", [False, True])
def test_figures_use_the_width_and_can_be_read_on_a_phone(site, browse, dark):
    page = site / "results" / "benchmarks.html"
    with browse(1920, dark=dark) as browser:
        browser.open(page, shown="h1")
        browser.wait(f"{FIGURE}.complete")
        assert browser.run(f"{FIGURE}.offsetWidth") > 1000
        assert browser.run("document.querySelector('article table').offsetWidth") > 1000
        turned = browser.run(f"getComputedStyle({FIGURE}).filter") != "none"
        assert turned == dark
        browser.resize(390)
        assert browser.run("document.documentElement.scrollWidth") <= 390
        assert browser.run(f"{FIGURE}.offsetWidth") > 700
        assert browser.run("document.querySelector('p.figure').clientWidth") <= 390
        assert browser.run(f"{FIGURE}.closest('a').href === {FIGURE}.src")
