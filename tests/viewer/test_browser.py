"""The page in a real browser, by clicks and keys: skipped where there is no Chromium."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from fedre_privacy.eval.intervals import cluster_means, ends
from fedre_privacy.reports.viewer.entries import ResultEntry, Score, Targets
from fedre_privacy.reports.viewer.page import view, write_page
from fedre_privacy.reports.viewer.pictures import sheets
from fedre_privacy.reports.viewer.reader import collect

pytestmark = pytest.mark.slow

ROWS = "[...document.querySelectorAll('table.results .folder')].map(e => e.textContent)"
TILES = "[...document.querySelectorAll('button.tile')].map(b => Number(b.dataset.target))"
DRAWN = "[...document.querySelectorAll('canvas')].every(c => c.dataset.drawn === 'yes')"


def choose(browser, name: str) -> None:
    """Click the title of the result in a folder of a name."""
    browser.wait(f"{ROWS}.includes({name!r})")
    browser.run(
        "[...document.querySelectorAll('table.results tr')].forEach(row => { const a = "
        f"row.querySelector('a'); if (row.querySelector('.folder')?.textContent === {name!r}) "
        "a.id = 'wanted'; })"
    )
    browser.click("#wanted")


def fits(browser, width: int) -> bool:
    return browser.run("document.documentElement.scrollWidth") <= width


@pytest.fixture(scope="module")
def page(small, tmp_path_factory) -> Path:
    return view(small.runs, tmp_path_factory.mktemp("page") / "page.html").path


def test_results_are_searched_filtered_sorted_and_kept_on_reload(page, small, browse):
    with browse() as browser:
        browser.open(page)
        assert len(browser.run(ROWS)) == 6
        browser.choose("attack", "linear")
        assert browser.run(ROWS) == [small.linear.folder.name]
        browser.choose("attack", "")
        browser.type("#search", "pixel strong")
        browser.wait(f"{ROWS}.length === 1")
        assert browser.run(ROWS) == [small.pixel.folder.name]
        browser.reload()
        browser.wait(f"{ROWS}.length === 1")
        browser.click_text("form button", "Show all")
        browser.wait(f"{ROWS}.length === 6")
        browser.click("[data-sort=score]")
        up = browser.run(ROWS)
        assert (
            browser.run("document.activeElement.closest('th').getAttribute('aria-sort')")
            == "ascending"
        )
        browser.click("[data-sort=score]")
        down = browser.run(ROWS)
        scored = [entry for entry in collect(small.runs) if entry.score is not None]
        wanted = [e.name for e in sorted(scored, key=lambda e: e.score.over)]
        assert up[: len(wanted)] == wanted and down[: len(wanted)] == wanted[::-1]
        assert browser.problems == []
        assert all(url.startswith(("file:", "data:", "about:")) for url in browser.requests)


def test_the_list_says_the_answer_first(page, small, browse):
    with browse(1280) as browser:
        browser.open(page)
        heads = "[...document.querySelectorAll('thead th')].filter(e => e.offsetWidth).map("
        heads = browser.run(heads + "e => e.textContent)")
        assert heads[2:5] == ["result", "verdict", "over floor"]
        assert "scheme" not in heads  # no result has one
        # what decides is seen without moving the table, and the first result without scrolling
        assert browser.run(
            "(() => { const box = document.querySelector('table.results').parentElement;"
            "return box.scrollWidth <= box.clientWidth; })()"
        )
        first = "document.querySelector('tbody tr').getBoundingClientRect().bottom"
        assert browser.run(first) < 500
        assert not browser.run("document.querySelector('details.all').open")
        titles = browser.run("[...document.querySelectorAll('.name a')].map(e => e.textContent)")
        assert "pixel on representations, FedAllRep" in titles and "labels, FedAllRep" in titles
        assert "audit of the mechanism, FedAllRep" in titles
        # a run stands above what was done to it
        kinds = browser.run("[...document.querySelectorAll('tbody tr')].map(e => e.classList[0])")
        rows = browser.run("[...document.querySelectorAll('tbody tr')].map(e => e.className)")
        assert kinds.index("run") < kinds.index("attack")
        assert {row.endswith("inside") for row in rows if row[:6] in ("attack", "audit ")} == {True}
        # a word is never told by its colour alone
        badges = browser.run(
            "[...document.querySelectorAll('tbody .word')].map(e => [e.className.split(' ')[1],"
            "e.textContent.trim(), e.querySelector('svg path').getAttribute('d')])"
        )
        looks = {look: icon for look, _, icon in badges}
        seen = {(look, word) for look, word, _ in badges}
        assert {("open", "inconclusive"), ("open", "consistent")} <= seen
        assert len(set(looks.values())) == len(looks)
        assert browser.run("[...document.querySelectorAll('img.small')].length") == 2
        assert browser.run(
            "[...document.querySelectorAll('img.small')].every(i => i.naturalWidth === 64"
            " && i.naturalHeight === 32)"  # four targets of 16 by 16, truth above answer
        )
        words = browser.run("document.querySelector('svg.small').getAttribute('aria-label')")
        assert "accuracy" in words
        browser.run("location.hash = '#/?verdict=leaks'")
        browser.wait("document.querySelector('summary').textContent === 'Filters (1 set)'")


def test_targets_are_switched_sorted_filtered_and_enlarged(page, small, browse):
    with browse() as browser:
        browser.open(page)
        choose(browser, small.linear.folder.name)
        browser.wait("document.querySelectorAll('button.tile').length === 12")
        assert browser.run("document.activeElement.tagName") == "H1"
        browser.wait(DRAWN)
        seen = "[...document.querySelector('button.tile').querySelectorAll('canvas')].map("
        seen += "c => [...c.getContext('2d').getImageData(0, 0, 16, 16).data].filter("
        seen += "(_, i) => i % 4 === 0))"
        truth, answer, floor, apart = (torch.tensor(one) for one in browser.run(seen))
        card = small.linear.card
        for shown, image in (
            (truth, card.originals[0]), (answer, small.linear.outcome.images[0]),
            (floor, card.floor_images[0]),
        ):  # fmt: skip
            assert torch.equal(shown, (image.clamp(0, 1) * 255).round().long().flatten())
        assert torch.equal(apart, (4 * (truth - answer).abs()).clamp(max=255))

        browser.choose("sort by", "-psnr")
        order = small.linear.frame()["psnr"].argsort(kind="stable")[::-1].tolist()
        assert browser.run(TILES) == order
        least = small.linear.frame()["psnr"].sort_values().iloc[8]
        browser.run("document.querySelectorAll('input[type=number]')[0].focus()")
        browser.type("input[type=number]", f"{least - 1e-6:.8f}")
        browser.wait("document.querySelectorAll('button.tile').length === 4")
        assert browser.run(TILES) == order[:4]
        browser.reload()
        browser.wait("document.querySelectorAll('button.tile').length === 4")

        browser.click("input[value=difference]")
        browser.wait("document.querySelectorAll('.tile canvas').length === 4")
        browser.wait(DRAWN)
        browser.run("document.querySelector('button.tile').focus()")
        browser.key("ArrowRight")
        said = "document.activeElement.dataset.target"
        assert int(browser.run(said)) == order[1]
        browser.key("Enter")
        browser.wait("document.querySelector('dialog').open")
        assert browser.run("document.querySelectorAll('dialog canvas').length") == 4
        title = "document.querySelector('dialog h2').textContent"
        first = browser.run(title)
        browser.key("ArrowRight")
        assert browser.run(title) != first
        browser.click_text("dialog button", "Previous")
        assert browser.run(title) == first and f"Target {order[1]}" in first
        browser.key("Escape")
        browser.wait("!document.querySelector('dialog').open")
        assert int(browser.run(said)) == order[1]
        assert browser.problems == []


def test_two_attacks_are_compared_target_by_target(page, small, browse):
    with browse() as browser:
        browser.open(page)
        for result in (small.pixel, small.linear):
            browser.click(f"input[aria-label*='{result.folder.name}']")
        browser.click_text("a", "Compare target by target")
        browser.wait("document.getElementById('scatter') !== null")
        cells = browser.run("[...document.querySelectorAll('main td')].map(c => c.textContent)")
        clients = torch.tensor(small.linear.frame()["client"].to_numpy())
        gap = torch.tensor((small.linear.frame()["psnr"] - small.pixel.frame()["psnr"]).to_numpy())
        low, high = ends(cluster_means(gap[:, None], clients))
        base = browser.run("document.querySelectorAll('select')[1].selectedOptions[0].textContent")
        sign = 1 if base.startswith("pixel") else -1
        ordered = sorted((sign * low, sign * high))
        wanted = f"{sign * float(gap.mean()):+.3f} [{ordered[0]:+.3f}, {ordered[1]:+.3f}]"
        assert wanted in cells and "12" in cells
        browser.wait(DRAWN)
        pair = "document.querySelector('#pair p').textContent"
        first = browser.run(pair)
        assert "pair 1 of 12" in first
        browser.click("#scatter", (0.2, 0.8))
        assert "of 12" in browser.run(pair)
        browser.run("document.getElementById('scatter').focus()")
        for _ in range(12):
            browser.key("ArrowRight")
        assert "pair 12 of 12" in browser.run(pair)
        browser.choose("measure", "hit1")
        browser.wait("document.querySelector('#pair p').textContent.startsWith('found')")
        assert browser.run("location.hash").endswith("measure=hit1")
        assert browser.problems == []


def test_variants_are_compared_over_their_attacks(page, small, browse):
    with browse() as browser:
        browser.open(page)
        browser.choose("compare by", "attack")
        browser.wait("document.querySelector('main h1').textContent.startsWith('Compared by')")
        words = browser.run("document.querySelector('main table').textContent")
        assert "pixel12" in words
        assert "has no such score" in words  # labels have no PSNR


def test_what_cannot_be_paired_is_not(page, small, browse):
    with browse() as browser:
        browser.open(page)
        ids = {one["path"]: one["id"] for one in browser.run(
            "JSON.parse(document.getElementById('index').textContent).entries")}  # fmt: skip
        mixed = [ids[small.path(r.folder)] for r in (small.labels, small.linear)]
        browser.open(page, f"#/compare/{','.join(mixed)}")
        words = browser.run("document.querySelector('main').textContent")
        assert "has no such score" in words and "No target of the two" in words


def test_the_frontier_can_be_pointed_at(page, browse):
    with browse() as browser:
        browser.open(page)
        choose(browser, "two")
        browser.wait("document.querySelectorAll('.point').length === 2")
        browser.click(".point[data-label='strong'] circle")
        told = browser.run("document.getElementById('pointed').textContent")
        assert told.startswith("strong: accuracy 0.800") and "Pareto" in told
        browser.run("document.querySelector('.point[data-label^=weak]').focus()")
        told = browser.run("document.getElementById('pointed').textContent")
        assert told.startswith("weak <b>: accuracy 0.600")
        browser.choose("against", "scalars")
        browser.wait("document.querySelector('svg.chart')?.textContent.includes('scalars')")
        assert "PARTIAL" in browser.run("document.querySelector('main').textContent")
        assert browser.problems == []


@pytest.mark.parametrize("width", [390, 1000, 1920])
@pytest.mark.parametrize("dark", [False, True])
def test_no_page_is_wider_than_the_window(page, small, browse, width, dark):
    with browse(width, dark=dark) as browser:
        browser.open(page)
        ids = {one["path"]: one["id"] for one in browser.run(
            "JSON.parse(document.getElementById('index').textContent).entries")}  # fmt: skip
        both = [ids[small.path(r.folder)] for r in (small.pixel, small.linear)]
        for address in ["#/", *(f"#/entry/{one}" for one in ids.values()),
                        f"#/compare/{','.join(both)}"]:  # fmt: skip
            browser.run(f"location.hash = {address!r}")
            browser.wait("document.querySelector('main h1') !== null")
            browser.wait(DRAWN)
            assert fits(browser, width), address
            ground = browser.run("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(23, 25, 28)") == dark
            # every control has a name, every picture words, one heading of the first level
            assert browser.run(
                "[...document.querySelectorAll('main input, main select, main button, canvas,"
                "svg.chart, main a')].filter(e => !(e.getAttribute('aria-label') || e.textContent"
                " || e.labels && e.labels.length)).length"
            ) == 0  # fmt: skip
            assert browser.run("document.querySelectorAll('h1').length") == 1
            assert browser.run(
                "new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size"
                " === document.querySelectorAll('[id]').length"
            )
        assert browser.problems == []


def test_pictures_in_a_folder_are_shown_too(small, tmp_path, browse):
    made = view(small.runs, tmp_path / "site", truth=False)
    with browse() as browser:
        browser.open(made.path)
        choose(browser, small.linear.folder.name)
        browser.wait("document.querySelectorAll('button.tile').length === 12")
        browser.wait(DRAWN)
        # 12 targets, an answer and a floor each
        assert browser.run("document.querySelectorAll('.tile canvas').length") == 24
        assert "left out" in browser.run("document.body.textContent")
        assert browser.problems == []


def test_a_strangers_text_runs_nothing(tmp_path, browse):
    evil = '</script><script>window.evil=1</script><img src=x onerror="window.evil=1">'
    entry = ResultEntry(
        "attack", f"a/{evil}", "partial", evil, {"protocol": evil, "attack": evil}, because=evil,
        facts={evil: evil}, flags={evil: evil}, settings={"x": evil},
        score=Score(evil, 1.0, evil),
    )  # fmt: skip
    page = write_page([entry], tmp_path / "runs", tmp_path / "p.html", truth=True)
    with browse() as browser:
        browser.open(page)
        assert evil[:20] in browser.run("document.querySelector('main').textContent")
        browser.click("td.name a")
        browser.wait("document.querySelector('main h1').textContent.includes('script')")
        assert browser.run("window.evil") is None
        assert browser.run("document.querySelectorAll('main img').length") == 0


def many(count: int, seed: int) -> Targets:
    """Targets with pictures and scores."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, 16, 16, generator=rng)
    names = [f"one {i}" for i in range(count)]
    return Targets(
        {"target": list(range(count)), "client": [i % 50 for i in range(count)],
         "psnr": (torch.randn(count, generator=rng) * 3 + 15).tolist(),
         "psnr_floor": [12.0] * count, "fit": torch.rand(count, generator=rng).tolist(),
         "behind": ["1 image" if i % 3 else "2-30 images" for i in range(count)]},
        {"psnr": ("PSNR dB", True)}, ("fit",), tuple(names),
        tuple(f"client {i % 50}" for i in range(count)),
        {"truth": sheets(images), "answer": sheets((images + 0.2).clamp(0, 1)),
         "floor": sheets(images[:5], torch.arange(count) % 5)},
    )  # fmt: skip


def test_ten_thousand_targets_open_in_two_seconds(tmp_path, browse):
    entries = [
        ResultEntry("attack", f"run/attacks/{name}", "complete", facets={"attack": name},
              targets=many(10_000, seed))
        for seed, name in enumerate(("one", "two"))
    ]  # fmt: skip
    page = write_page(entries, tmp_path / "runs", tmp_path / "p.html", truth=True)
    with browse() as browser:
        took = [browser.open(page)]
        choose(browser, "one")
        address = browser.run("location.hash")
        took += [browser.open(page, address) for _ in range(3)]
        browser.wait("document.querySelectorAll('button.tile').length === 48")
        browser.wait(DRAWN)
        assert "10,000 targets" in browser.run(
            "document.querySelector('#targets-count').textContent"
        )
        browser.choose("sort by", "-psnr")
        values = entries[0].targets.columns["psnr"]
        best = max(range(10_000), key=lambda i: values[i])
        assert browser.run(TILES)[0] == best
        browser.click_text("nav button", "Last")
        browser.wait("document.querySelectorAll('button.tile').length === 16")
        assert min(took[1:]) < 2 and took[0] < 4, took  # other work on the machine comes on top


def test_a_thousand_runs_are_listed(tmp_path, browse):
    entries = [
        ResultEntry("run", f"run-{i:04d}", "complete", facets={"protocol": f"p{i % 7}"}, seed=i,
              accuracy=(i * 37 % 1000) / 1000)
        for i in range(1000)
    ]  # fmt: skip
    page = write_page(entries, tmp_path / "runs", tmp_path / "p.html", truth=True)
    with browse() as browser:
        assert browser.open(page) < 2
        assert len(browser.run(ROWS)) == 100
        browser.click_text("nav button", "Next")
        assert browser.run(ROWS)[0] == "run-0100"
        browser.click("[data-sort=accuracy]")
        assert browser.run(ROWS)[0] == "run-0000"
        browser.type("#search", "run-0777")
        browser.wait(f"{ROWS}.length === 1")
        assert browser.run("document.getElementById('count').textContent") == "1 result of 1,000"


def cases() -> list[tuple[torch.Tensor, torch.Tensor, tuple[float, float] | None]]:
    rng = torch.Generator().manual_seed(3)
    out = []
    for n, groups in ((2, 2), (5, 5), (12, 4), (40, 3), (200, 37), (1000, 400), (9, 1)):
        values = torch.randn(n, generator=rng, dtype=torch.float64) * 4 + 1
        out.append((values, torch.randint(groups, (n,), generator=rng), None))
        uneven = (torch.rand(n, generator=rng) ** 3 * groups).long()
        out.append((values.clamp(-1, 1), uneven, (-1.0, 1.0)))
    for constant in (0.0, 1.0, -1.0, 0.25):
        out.append((torch.full((8,), constant).double(), torch.arange(8) % 4, (-1.0, 1.0)))
    return [*out, (torch.ones(1).double(), torch.zeros(1).long(), None)]


def test_intervals_in_the_page_are_those_of_the_library(page, browse):
    with browse() as browser:
        browser.open(page)
        for values, clusters, bounds in cases():
            given = json.dumps([values.tolist(), clusters.tolist(), bounds])
            found = browser.run(f"(() => {{ const r = intervals.clustered(...{given}); return "
                                "[r.mean, r.low, r.high].map(v => Number.isNaN(v) ? null : v); "
                                "})()")  # fmt: skip
            wanted = ends(cluster_means(values[:, None], clusters), bounds)
            assert found[0] == pytest.approx(float(values.mean()), abs=1e-10)
            if wanted is None:
                assert found[1:] == [None, None]
            else:
                assert found[1:] == pytest.approx(list(wanted), rel=1e-8, abs=1e-9)


def test_a_watched_benchmark_grows_on_reload(small, tmp_path, browse):
    entries = collect(small.runs)
    out = tmp_path / "p.html"
    before = [dataclasses.replace(e, status="partial") if e.kind == "run" else e for e in entries]
    write_page(before[:2], small.runs, out, truth=True)
    with browse() as browser:
        browser.open(out, "#/?sort=-accuracy")
        assert len(browser.run(ROWS)) == 2
        write_page(entries, small.runs, out, truth=True)
        browser.reload()
        browser.wait(f"{ROWS}.length === 6")
        assert browser.run("location.hash") == "#/?sort=-accuracy"
