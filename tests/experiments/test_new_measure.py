"""A metric in a file of its own is in the table, page, record, results, comparison, frontier."""

import json
import sys

import pandas as pd
import pytest
import torch

from fedre_privacy.benchmarking import benchmark as benchmarking
from fedre_privacy.benchmarking.benchmark import BenchmarkResult
from fedre_privacy.benchmarking.jobs import Place
from fedre_privacy.benchmarking.results import frame, over_seeds
from fedre_privacy.benchmarking.sweep import run_job
from fedre_privacy.benchmarking.variants import plan_jobs, read_sweep
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.reports.attack import attack_page
from fedre_privacy.reports.benchmark import write_benchmark_report

pytestmark = pytest.mark.slow

METRIC = '''
from dataclasses import dataclass
from typing import ClassVar

from fedre_privacy.eval.measures import FRONTIER
from fedre_privacy.eval.metrics.base import Metric


@dataclass(frozen=True, kw_only=True)
class Brightness(Metric):
    """Difference of mean brightness; lower leaks more."""

    title: ClassVar[str] = "brightness"
    unit: ClassVar[str] = "levels"
    higher_leaks: ClassVar[bool] = False
    digits: ClassVar[int] = 1
    shown: ClassVar[str] = FRONTIER

    def score(self, recovered, original):
        return 255 * (recovered.mean((1, 2, 3)) - original.mean((1, 2, 3))).abs()
'''
KEY = "new_metric:Brightness"
SWEEP = {
    "name": "measured",
    "protocols": ["fedproto"],
    "seeds": [0],
    "attacks": [
        {
            "attack": {"name": "pixel", "steps": 2},
            "target": "prototypes",
            "eval": {"targets": 8, "ceiling": 2, "metrics": ["psnr", "new_metric:Brightness"]},
        }
    ],
}
BASE = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "model": {"name": "cnn4", "dim": 16},
    "train": {"clients": 4, "rounds": 1, "batch_size": 8},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One attack scored by the new metric, as a benchmark of one job; and its folder."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "new_metric.py").write_text(METRIC)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        allow_module_paths("new_metric:Brightness")
        wanted = read_sweep(SWEEP, BASE, name="")
        (job,) = plan_jobs(wanted)
        place = Place(folder / "out", folder / "runs")
        result = run_job(job, place, torch.device("cpu"), attack_page)
        assert result["status"] == "complete", result.get("traceback")
        rows = frame([result])
        yield BenchmarkResult(
            place.folder, rows, over_seeds(rows), wanted, [place.read(job)], place.runs
        )
    sys.modules.pop("new_metric", None)


def test_it_is_in_the_attacks_record_table_and_page(made):
    (page,) = made.runs.glob("*/attacks/*/report.html")
    record = json.loads((page.parent / "record.json").read_text())
    measures = {(m["key"], m["group"]): m for m in record["measures"]}
    found = measures[KEY, ""]
    assert found["unit"] == "levels" and not found["higher_is_more_leakage"] and found["n"] == 8
    assert found["over"] == pytest.approx(found["floor"] - found["value"])
    text = page.read_text()
    assert "brightness levels" in text and f"{found['value']:.1f} +- {found['sd']:.1f}" in text
    assert KEY in pd.read_csv(page.parent / "scores.csv")


def test_it_is_in_a_benchmarks_rows_table_page_comparison_and_frontier(made):
    rows = made.rows[made.rows["measure"] == KEY]
    assert "" in set(rows["group"]) and set(rows["unit"]) == {"levels"}
    (row,) = made.table()
    assert row["images: brightness (levels) over floor"] != "-"
    titles = [axes.get_title().replace("\n", " ") for axes in made.comparison().axes]
    assert "images: brightness (levels)" in titles
    (point,) = made.points(KEY)
    assert point.over is not None and point.over != made.points()[0].over
    labels = [axes.get_xlabel() for axes in made.figure(KEY).axes]
    assert "images: brightness over the floor (levels)" in labels
    page = write_benchmark_report(made).read_text()
    assert "brightness levels" in page


@pytest.mark.slow
def test_its_frontier_is_written_beside_the_first(made, monkeypatch):
    job = made.jobs[0]
    monkeypatch.setattr(benchmarking, "run_jobs", lambda *_, **__: [job])
    benchmarking.benchmark(made.wanted, folder=made.folder, runs=made.runs, page="none")
    names = {path.name for path in made.folder.glob("frontier*.png")}
    assert names == {
        "frontier.png", "frontier-shared-accuracy.png", "frontier-new_metric.Brightness.png",
    }  # fmt: skip
    stored = pd.read_csv(made.folder / "results.csv")
    assert KEY in set(stored["measure"])
