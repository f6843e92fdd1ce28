"""axe-core finds nothing serious on any page of ours, light or dark, wide or narrow."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from fedre_privacy.benchmarking.benchmark import BenchmarkResult
from fedre_privacy.benchmarking.results import frame, over_seeds
from fedre_privacy.benchmarking.variants import read_sweep
from fedre_privacy.reports.benchmark import write_benchmark_report
from fedre_privacy.reports.viewer.page import view

pytestmark = pytest.mark.slow

FINDINGS = """
axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
  .filter(v => WANTED.includes(v.impact))
  .map(v => v.id + ': ' + v.nodes.map(n => n.html.slice(0, 160) + ' -- '
    + n.failureSummary.replace(/\\s+/g, ' ').slice(0, 260)).join(' | ')))
"""
SHADE = "document.body.getAttribute('data-md-color-scheme')"
SERIOUS = ["serious", "critical"]
SWEEP = {"protocols": ["fedre", "fedproto"], "seeds": [0], "name": "two"}


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    try:
        found = [path for path in files("axe-playwright-python") or [] if path.name == "axe.min.js"]
    except PackageNotFoundError:
        pytest.skip("no axe-core here: pip install axe-playwright-python")
    return Path(str(found[0].locate())).read_text(encoding="utf-8")


def findings(browser, axe: str, wanted: list[str] = SERIOUS) -> list[str]:
    """What axe-core says of the page as it is shown."""
    browser.run(f"{axe}; true")
    return browser.run(FINDINGS.replace("WANTED", json.dumps(wanted)))


@pytest.fixture(scope="module")
def page(small, tmp_path_factory) -> Path:
    """The viewer's page."""
    return view(small.runs, tmp_path_factory.mktemp("page") / "page.html").path


@pytest.fixture(scope="module")
def benchmark(small) -> Path:
    """The page of a benchmark, one job of which failed."""
    wanted = read_sweep(SWEEP, {"data": small.run.plain()["data"]}, name="")
    files = sorted((small.runs / "benchmarks" / "two" / "jobs").glob("*.json"))
    jobs = [json.loads(file.read_text()) for file in files]
    jobs.append({**jobs[0], "attacks": [], "status": "failed", "failure": "too <much>",
                 "traceback": "Traceback", "label": "failed"})  # fmt: skip
    rows = frame(jobs)
    folder = small.runs / "benchmarks" / "two"
    return write_benchmark_report(
        BenchmarkResult(folder, rows, over_seeds(rows), wanted, jobs, small.runs)
    )


WIDTHS = [390, 1280, 1920]
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
SHADES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


@SHADES
@pytest.mark.parametrize("kind", ["pixel", "linear", "labels", "audit", "benchmark", "membership"])
def test_a_report_page_is_accessible(kind, small, request, browse, axe, dark):
    if kind == "benchmark":
        path = request.getfixturevalue("benchmark")
    elif kind == "membership":
        path = request.getfixturevalue("game").folder / "report.html"
    else:
        path = getattr(small, kind).folder / "report.html"
    with browse(dark=dark) as browser:
        for width in WIDTHS:
            browser.resize(width)
            browser.open(path, shown="h1")
            assert findings(browser, axe) == [], width
            assert browser.run(OVERFLOW) <= 0, width
        for opener in ("button.zoom", ".target img"):
            if browser.run(f"document.querySelector('{opener}') !== null"):
                browser.click(opener)
                browser.wait("document.querySelector('dialog').open")
                assert findings(browser, axe) == []
                browser.key("Escape")
                browser.wait("!document.querySelector('dialog').open")


@SHADES
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_of_the_viewer_is_accessible(page, small, browse, axe, width, dark):
    with browse(width, dark=dark) as browser:
        browser.open(page)
        ids = {one["path"]: one["id"] for one in browser.run(
            "JSON.parse(document.getElementById('index').textContent).entries")}  # fmt: skip
        both = [ids[small.path(one.folder)] for one in (small.pixel, small.linear)]
        unlike = [ids[small.path(one.folder)] for one in (small.labels, small.linear)]
        views = [
            "#/", "#/?verdict=none", "#/compare?by=attack", "#/entry/none",
            *(f"#/entry/{one}" for one in ids.values()),
            f"#/compare/{','.join(both)}", f"#/compare/{','.join(unlike)}",
        ]  # fmt: skip
        found = {}
        for address in views:
            browser.open(page, address)
            found[address] = findings(browser, axe)
            assert browser.run(OVERFLOW) <= 0, address
        browser.open(page, f"#/entry/{both[0]}")
        browser.click("button.tile")
        browser.wait("document.querySelector('dialog').open")
        found["enlarged"] = findings(browser, axe)
        assert {address: said for address, said in found.items() if said} == {}


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1400, False)])
def test_every_page_of_the_documentation_is_accessible(site, browse, axe, width, dark):
    """Every second page narrow and dark, the others wide and light."""
    elsewhere = {"404.html", "gallery.html"}  # the gallery is a page of the viewer
    pages = [page for page in sorted(site.rglob("*.html")) if page.name not in elsewhere]
    assert len(pages) > 30
    found = {}
    with browse(width, dark=dark) as browser:
        for page in pages[dark::2]:
            browser.open(page, shown="h1")
            browser.wait(f"{SHADE} === '{'slate' if dark else 'default'}'")
            found[page.name] = findings(browser, axe)
    assert {name: said for name, said in found.items() if said} == {}


KINDS_OF_SITE_PAGES = (
    "index", "tutorial", "commands", "membership", "my_flower_app", "results/index",
    "results/gradients", "reference/attacks", "reference/attacks/dip", "reference/protocols",
    "reference/functions", "reference/fedre-attack",
)  # fmt: skip


@SHADES
def test_each_kind_of_page_of_the_documentation_fits_every_width(site, browse, axe, dark):
    found = {}
    with browse(dark=dark) as browser:
        for width in WIDTHS:
            browser.resize(width)
            for name in KINDS_OF_SITE_PAGES:
                browser.open(site / f"{name}.html", shown="h1")
                browser.wait(f"{SHADE} === '{'slate' if dark else 'default'}'")
                found[name, width] = findings(browser, axe)
                assert browser.run(OVERFLOW) <= 0, (name, width)
    assert {name: said for name, said in found.items() if said} == {}


@SHADES
def test_a_game_of_membership_is_accessible_in_the_viewer(game, tmp_path, browse, axe, dark):
    page = view(game.folder.parent, tmp_path / "page.html").path
    with browse(dark=dark) as browser:
        browser.open(page)
        (entry,) = [one["id"] for one in browser.run(
            "JSON.parse(document.getElementById('index').textContent).entries")
            if one["kind"] == "membership"]  # fmt: skip
        for width in WIDTHS:
            browser.resize(width)
            browser.open(page, f"#/entry/{entry}")
            assert findings(browser, axe) == [], width
            assert browser.run(OVERFLOW) <= 0, width


def test_what_is_wrong_is_found(tmp_path, browse, axe):
    bad = tmp_path / "bad.html"
    bad.write_text("<main><h1>No name</h1><img src='data:,'><p style='color:#ddd'>Pale.</p></main>")
    with browse() as browser:
        browser.open(bad, shown="h1")
        said = " ".join(findings(browser, axe))
    assert "image-alt" in said and "color-contrast" in said
