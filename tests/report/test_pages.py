"""The pages of real attacks and benchmarks: what must be on them, and that they repeat."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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
from fedre_privacy.core.manifest import figure_names
from fedre_privacy.reports import attack as pages
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
    assert len(pixels) == 2 * 3 * 6  # beside the verdict, and one by one
    sources = [image["src"] for image in pixels]
    assert len({*sources}) > 6  # not one picture for all
    kinds = {image["alt"].split(",")[0].split(" of ")[0] for image in pixels}
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


def test_figures_that_a_kill_left_out_are_drawn_with_the_page(attacked):
    folder = attacked.folder
    listed = figure_names(folder)
    assert {"report.html", "figure.png", "figure.pdf", "figure.svg"} <= listed
    page, picture = folder / "report.html", (folder / "figure.svg").read_bytes()
    for name in ("drawn.json", "figure.svg"):
        (folder / name).unlink()
    assert attack_page(attacked) == page
    assert (folder / "figure.svg").read_bytes() == picture and figure_names(folder) == listed


def test_figures_that_an_earlier_version_recorded_stay_as_they_are(attacked, monkeypatch):
    entries = {"record.json": None, "figure.png": None}
    monkeypatch.setattr(
        pages, "complete_manifest", lambda folder: SimpleNamespace(entries=entries, sha256="0")
    )
    monkeypatch.setattr(pages, "save_figure", lambda *given: pytest.fail("drawn again"))
    before = (attacked.folder / "drawn.json").read_bytes()
    try:
        write_attack_report(attacked)
        assert figure_names(attacked.folder) == {"report.html"}
    finally:
        (attacked.folder / "drawn.json").write_bytes(before)
        monkeypatch.undo()
        write_attack_report(attacked)


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
