"""The pages of real attacks and benchmarks: what must be on them, and that they repeat."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
import yaml

import fedre_privacy as fp
from fedre_privacy.benchmarking.benchmark import BenchmarkResult
from fedre_privacy.benchmarking.jobs import Place
from fedre_privacy.benchmarking.results import frame, over_seeds
from fedre_privacy.benchmarking.sweep import run_job
from fedre_privacy.benchmarking.variants import plan_jobs, read_sweep
from fedre_privacy.cli import attack as attack_command
from fedre_privacy.reports.attack import attack_page, write_attack_report
from fedre_privacy.reports.benchmark import write_benchmark_report


def words(reader) -> str:
    return " ".join(" ".join(reader.words).split())


def test_an_attacks_page_says_everything(attacked, run, read):
    page = (attacked.folder / "report.html").read_text(encoding="utf-8")
    found, card = read(page), attacked.card
    seen = words(found)
    assert run.name in found.texts["title"]
    assert "COUNTERFACTUAL" in seen
    for text in (*attacked.trial.lines().values(), *(text for _, text in card.verdict.lines)):
        assert " ".join(text.split()) in seen
    assert card.verdict.rule in seen and run.record["data_sha256"] in seen
    assert "cpu" in seen and "torch" in seen and "steps: 2" in seen
    headline = found.tables[0]
    assert headline.heads[:3] == ["metric", "this attack", "floor"]
    assert [row[1][0] for row in headline.rows] == [r["this attack"] for r in attacked.table()]
    single = next(table for table in found.tables if "psnr_floor" in table.heads)
    assert len(single.rows) == len(attacked.frame())
    floors = next(table for table in found.tables if table.heads[:2] == ["floor", "answer"])
    assert [row[0][0] for row in floors.rows] == list(card.floors)


def test_every_target_shows_truth_answer_and_floor(attacked, read):
    page = (attacked.folder / "report.html").read_text(encoding="utf-8")
    found = read(page)
    pixels = [image for image in found.images if "pixels" in image["class"]]
    assert len(pixels) == 3 * 6
    sources = [image["src"] for image in pixels]
    assert len({*sources}) > 6  # not one picture for all
    kinds = {image["alt"].split(",")[0].split(":")[0] for image in pixels}
    assert kinds == {"truth (match)", "recovered", "floor"}
    assert "image-rendering: pixelated" in found.texts["style"]


def test_how_far_confidence_can_be_trusted_stands_above_the_targets(attacked):
    text = (attacked.folder / "report.html").read_text(encoding="utf-8")
    told = attacked.card.get("confidence_rank")
    assert told.n == 6 and f"{told.line()}" in text
    assert text.index(told.line()) < text.index("Target 0: ")
    assert "confidence" not in " ".join(row["metric"] for row in attacked.table())


def test_the_same_record_gives_the_same_page(attacked):
    path = attacked.folder / "report.html"
    before = path.read_bytes()
    assert write_attack_report(attacked) == path
    assert path.read_bytes() == before


@pytest.mark.slow
def test_the_command_on_the_page_finds_the_attack(attacked, run, monkeypatch, capsys):
    page = (attacked.folder / "report.html").read_text(encoding="utf-8")
    command = "fedre-attack --config config.yaml --runs-dir ../../.."
    assert command in page
    monkeypatch.chdir(attacked.folder)
    assert attack_command.main([*command.split()[1:], "--quiet"]) == 0
    assert Path(capsys.readouterr().out.strip()).resolve() == attacked.folder.resolve()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "threat", "column"),
    [("labels", "realistic", "jaccard"), ("membership", "strong", "member"),
     ("disentangle", "strong", "s_min")],
)  # fmt: skip
def test_attacks_without_images_have_a_page_too(run, read, name, threat, column):
    result = fp.attack(run, attack=name, threat=threat, device="cpu")
    found = read((result.folder / "report.html").read_text(encoding="utf-8"))
    assert not any("pixels" in image["class"] for image in found.images)
    assert "single-targets" in found.ids and "targets" not in found.ids
    assert any(column in table.heads for table in found.tables)
    seen = words(found)
    assert result.card.verdict.rule in seen
    assert all(note in seen for note in result.card.notes)


SWEEP = {
    "protocols": ["fedre"],
    "vary": {"<b>odd</b> & co": {"protocol": {"name": "fedproto"}}},
    "seeds": [0],
    "attacks": [{"attack": {"name": "labels"}, "target": "uploaded", "threat": "realistic"}],
    "name": "small",
}
BASE = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "train": {"clients": 4, "rounds": 1},
}


@pytest.fixture(scope="module")
def compared(runs):
    """Two trainings with a label attack, and one that is said to have failed."""
    wanted = read_sweep(SWEEP, BASE, name="")
    place = Place(runs / "benchmarks" / "small", runs)
    jobs = plan_jobs(wanted)
    results = [run_job(jobs[0], place, torch.device("cpu"), attack_page)]
    results.append(
        {**jobs[1].plain(), "attacks": [], "status": "failed", "failure": "too <much>",
         "traceback": "Traceback\n  <line 1>", "wall_s": 1.0}
    )  # fmt: skip
    rows = frame(results)
    result = BenchmarkResult(place.folder, rows, over_seeds(rows), wanted, results, runs)
    write_benchmark_report(result)
    return result, wanted, results


def test_a_benchmarks_page_says_everything(compared, read):
    result, wanted, results = compared
    assert results[0]["status"] == "complete", results[0].get("traceback")
    found = read((result.folder / "report.html").read_text(encoding="utf-8"))
    seen = words(found)
    assert "INCOMPLETE" in seen and "too <much>" in seen and "<line 1>" in seen
    assert "<b>odd</b> & co" in seen
    assert [row[0][0] for row in found.tables[0].rows] == ["fedre"]
    measures = next(table for table in found.tables if "over floor" in table.heads)
    assert "support Jaccard" in [row[measures.heads.index("measure")][0] for row in measures.rows]
    everything = next(table for table in found.tables if "status" in table.heads)
    assert [row[2][0] for row in everything.rows] == ["complete", "failed"]
    (page,) = [link for link in found.links if link.endswith("report.html")]
    assert (result.folder / page).resolve().is_file()


def test_a_benchmarks_settings_repeat_it(compared):
    result, wanted, _ = compared
    sweep = yaml.safe_load((result.folder / "sweep.yaml").read_text(encoding="utf-8"))
    again = plan_jobs(read_sweep(sweep, {}, name=""))
    assert [job.name for job in again] == [job.name for job in plan_jobs(wanted)]
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert "fedre-benchmark sweep.yaml --out . --runs-dir ../.." in page


def test_a_benchmark_where_all_failed_has_a_page(compared, tmp_path, read, runs):
    _, wanted, results = compared
    rows = frame(results[1:])
    result = BenchmarkResult(tmp_path, rows, over_seeds(rows), wanted, results[1:], runs)
    write_benchmark_report(result)
    assert "No training has finished." in words(read((tmp_path / "report.html").read_text()))


PROBE = """
<script>
(function () {
  var said = [], width = document.documentElement;
  document.querySelectorAll("table.sortable").forEach(function (table) {
    table.tHead.rows[0].cells[0].querySelector("button").click();
    said.push(table.tHead.rows[0].cells[0].getAttribute("aria-sort"));
  });
  var broken = Array.from(document.images).filter(function (i) {
    return i.src && !(i.complete && i.naturalWidth);
  }).length;
  document.querySelector("button.zoom").click();
  document.documentElement.setAttribute("data-probe", JSON.stringify({
    sorted: said.every(function (s) { return s === "ascending"; }), tables: said.length,
    broken: broken, wide: width.scrollWidth > width.clientWidth,
    dialog: document.querySelector("dialog").open
  }));
})();
</script>
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page(attacked, chromium, tmp_path, width):
    page = (attacked.folder / "report.html").read_text(encoding="utf-8")
    caught = "<script>onerror = function (m) { document.title = 'ERROR ' + m; };</script>"
    page = page.replace("<head>", f"<head>{caught}").replace("</body>", f"{PROBE}</body>")
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}",
         f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom",
         (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "<title>ERROR" not in done.stdout
    for said in ("sorted&quot;:true", "broken&quot;:0", "wide&quot;:false", "dialog&quot;:true"):
        assert said in done.stdout
