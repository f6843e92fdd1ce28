"""Sweeps: planned before anything runs, resumable, a failure is kept and never averaged away."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from fedre_privacy.api.workflows import PAGE
from fedre_privacy.benchmarking import benchmark as benchmarking
from fedre_privacy.benchmarking import executors as processes
from fedre_privacy.benchmarking import sweep
from fedre_privacy.benchmarking.benchmark import BenchmarkResult
from fedre_privacy.benchmarking.jobs import Place
from fedre_privacy.benchmarking.panels import SILENT
from fedre_privacy.benchmarking.results import frame, over_seeds
from fedre_privacy.benchmarking.suite import default_suite, named_suite
from fedre_privacy.benchmarking.sweep import run_job
from fedre_privacy.benchmarking.variants import plan_jobs, read_sweep, without_repeats
from fedre_privacy.cli import benchmark as command
from fedre_privacy.core.errors import ConfigError, DamagedInputError
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.eval.measures import FRONTIER, Measure
from fedre_privacy.reports.attack import attack_page
from fedre_privacy.reports.benchmark import write_benchmark_report

BASE = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "partition": {"name": "pra", "alpha": 0.5},
    "model": {"name": "cnn4", "dim": 16},
    "train": {"clients": 3, "rounds": 1, "batch_size": 8},
}
CORES = os.cpu_count() or 1  # jobs at once, so that each has one thread and none waits for another
LABELS = ["labels@labels@realistic"]


def benchmark(asked, **how):
    """A benchmark with its page, as the command makes it."""
    result = benchmarking.benchmark(asked, page=PAGE, **how)
    write_benchmark_report(result)
    return result


def wanted(**keys):
    return read_sweep({"name": "tiny", "seeds": [0], "attacks": LABELS, **keys}, BASE, name="")


def test_settings_of_one_steering_are_variants_of_their_own():
    """Means are over trainings of one label, so two settings of a steering must not share one."""
    given = ["none", "null-head:rounds=1", "null-head:rounds=1,keep=0.1"]
    jobs = plan_jobs(wanted(protocols=["fedgh"], steerings=given, seeds=[0, 1]))
    marked = "fedgh, ACTIVE SERVER (null-head, round 1)"
    assert [job.label for job in jobs[::2]] == [
        "fedgh", f"{marked}: null-head:rounds=1", f"{marked}: null-head:rounds=1,keep=0.1",
    ]  # fmt: skip
    alone = plan_jobs(wanted(protocols=["fedgh"], steerings=given[:2]))
    assert [job.label for job in alone] == ["fedgh", marked]


def test_a_plan_resolves_every_job_and_refuses_all_problems_at_once():
    jobs = plan_jobs(wanted(protocols=["fedgh", "fedproto"], seeds=[0, 1]))
    assert [(job.label, job.seed) for job in jobs] == [
        ("fedgh", 0), ("fedgh", 1), ("fedproto", 0), ("fedproto", 1),
    ]  # fmt: skip
    assert len({job.name for job in jobs}) == 4
    with pytest.raises(ConfigError) as refused:
        plan_jobs(wanted(protocols=["fedxx"], vary={"odd": {"train": {"clients": 0}}}))
    said = str(refused.value)
    assert "fedxx: Unknown protocol" in said and "odd: 'train.clients' is 0" in said
    with pytest.raises(ConfigError, match="same training as"):
        plan_jobs(wanted(schemes=["rap"], protocols=["fedre"]))


def test_fedre_beside_its_own_schemes_is_named_once():
    both = {"protocols": ["fedre", "fedgh"], "schemes": ["rap", "vap"]}
    assert without_repeats(both, {})["protocols"] == ["fedgh"]
    assert without_repeats({**both, "schemes": ["vap"]}, {})["protocols"] == ["fedre", "fedgh"]
    assert without_repeats(both, {"protocol": {"name": "fedre"}}) == both
    assert without_repeats({"protocols": ["fedre"]}, {}) == {"protocols": ["fedre"]}


def test_a_list_among_defences_is_a_chain_in_its_order():
    chain = ["mask:keep=0.5", "quantise:bits=4"]
    plain, chained, turned = plan_jobs(
        wanted(protocols=["fedgh"], defenses=["none", chain, chain[::-1]])
    )
    assert plain.label == "fedgh" and not plain.training.defense
    assert chained.label == "fedgh + mask:keep=0.5 + quantise:bits=4"
    assert [one.name for one in chained.training.defense] == ["mask", "quantise"]
    assert [one.name for one in turned.training.defense] == ["quantise", "mask"]


def test_a_defence_that_is_given_by_its_settings_is_labelled_as_it_would_be_named():
    given = {"name": "quantise", "bits": 4}
    for chosen in (given, ["mask:keep=0.5", given]):
        made = plan_jobs(wanted(protocols=["fedgh"], defenses=[chosen]))
        assert made[0].label.endswith(" + quantise:bits=4")


def test_keys_and_emptiness_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'protocols'"):
        read_sweep({"protocol": ["fedre"]}, {}, name="x")
    with pytest.raises(ConfigError, match="Nothing to compare"):
        read_sweep({}, {}, name="x")
    with pytest.raises(ConfigError, match="Unknown target 'prototype'"):
        named_suite(["dip@prototype"])


@pytest.mark.parametrize(
    ("named", "target", "threat"),
    [
        ("linear", "uploaded", "strong"),
        ("labels", "uploaded", "realistic"),
        ("inverting-gradients", "update", "fedre-paper"),
        ("dip@recovered-prototypes", "recovered-prototypes", "strong"),
        ("linear@uploaded@fedre-paper", "uploaded", "fedre-paper"),
        ("pixel", "uploaded", "fedre-paper"),
        ("linear@representations", "representations", "strong"),
    ],
)
def test_what_is_left_out_of_a_name_is_as_usual_for_the_attack(named, target, threat):
    (found,) = named_suite([named])
    attack = named.partition("@")[0]
    assert found == {"attack": {"name": attack}, "target": target, "threat": threat}


def test_targets_are_those_of_every_attack_that_names_none():
    linear = {"attack": {"name": "linear"}, "threat": "strong"}
    asked = [linear, {**linear, "eval": {"targets": 3, "seed": 5}}, "dip"]
    (job,) = plan_jobs(wanted(protocols=["fedgh"], attacks=asked, targets=7))
    assert [one.evaluation.targets for one in job.attacks] == [7, 3, 7]


ODD = [
    {"base": "cnn4"}, {"base": 3}, {"base": [1]}, {"seeds": 5}, {"seeds": ["a"]}, {"seeds": [-1]},
    {"seeds": [True]}, {"seeds": [0.5]}, {"attacks": 3}, {"attacks": "labels"}, {"attacks": [3]},
    {"protocols": 3}, {"protocols": "fedre"}, {"protocols": {"name": "fedre"}}, {"protocols": [3]},
    {"schemes": 3}, {"schemes": "rap"}, {"steerings": 3}, {"defenses": 3}, {"defenses": [[3]]},
    {"defenses": [[["clip"]]]},
    {"vary": 3}, {"vary": {"a": 1}}, {"vary": {"a": None}}, {"vary": ["a"]}, {"targets": "x"},
    {"targets": 0}, {"name": 3}, {"name": "../up"}, {"name": ""},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_a_value_of_another_type_is_refused_with_what_is_needed(odd, tmp_path, capsys):
    ((key, value),) = odd.items()
    with pytest.raises(ConfigError) as refused:
        read_sweep({"protocols": ["fedgh"], **odd}, {}, name="x")
    (problem,) = refused.value.problems
    assert problem.startswith(f"'{key}' of a benchmark is {value!r}; it needs a ")
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"protocols": ["fedgh"], **odd}))
    assert command.main([str(tmp_path / "x.yaml"), "--dry-run"]) == 2
    assert problem in capsys.readouterr().err


def test_all_of_them_are_said_at_once():
    with pytest.raises(ConfigError) as refused:
        read_sweep({"base": 3, "seeds": 5, "protocol": 1}, {}, name="x")
    assert len(refused.value.problems) == 3


def test_uploads_that_are_read_over_rounds_keep_every_model():
    jobs = plan_jobs(wanted(protocols=["fedgh"], schemes=["rap", "rsr"]))
    jobs += plan_jobs(wanted(protocols=["fd", "fedral", "fedavg"], attacks=None))
    kept = {job.label: job.training.record.keep_every for job in jobs}
    assert kept == {"fedgh": 0, "rap": 1, "rsr": 1, "fd": 1, "fedral": 1, "fedavg": 0}


def test_the_suite_fits_what_is_uploaded():
    (job,) = plan_jobs(wanted(protocols=["fedre"], attacks=None))
    asked = {(s.attack.name, s.target) for s in job.attacks}
    assert ("disentangle", "uploaded") in asked and ("dip", "recovered-prototypes") in asked
    (local,) = plan_jobs(wanted(protocols=["local"], attacks=None))
    assert default_suite(local.training) == []
    small = plan_jobs(wanted(protocols=["fml", "fedkd", "fedmrl"], attacks=None))
    asked = {job.label: {s.attack.name for s in job.attacks} for job in small}
    blind = {"free-upstream", "labels", "span"}  # what needs no loss: fedmrl hides its own
    by_loss = {"update-inversion", "loss-membership"}
    assert asked["fml"] == asked["fedkd"] == blind | by_loss | {"head", "dip", "linear"}
    assert asked["fedmrl"] == blind
    starts = {
        init: {"protocol": {"name": "fedgh"}, "model": {"init": init}}
        for init in ("shared", "private")
    }
    for job in plan_jobs(wanted(vary=starts, attacks=None)):
        (shadow,) = (s for s in job.attacks if s.attack.name == "shadow")
        known = job.label == "shared"
        assert shadow.attack.start == ("known" if known else "random")
        assert shadow.threat.name == ("public-init" if known else "no-extractor")
    updates = plan_jobs(wanted(protocols=["fedavg", "fedsgd", "lg-fedavg"], attacks=None))
    asked = {
        (job.label, s.threat.name)
        for job in updates
        for s in job.attacks
        if (s.attack.name, s.target) == ("loss-membership", "membership")
    }
    assert asked == {
        ("fedavg", "realistic"),
        ("fedsgd", "realistic"),
        ("lg-fedavg", "fedre-paper"),  # a head computes a loss with the extractor only
    }


@pytest.mark.slow
def test_an_attack_that_refuses_leaves_the_others(tmp_path):
    via = {"attack": {"name": "pixel", "steps": 1}, "target": "recovered-prototypes"}
    base = {"record": {"keep_every": 1}}
    asked = wanted(schemes=["vap"], attacks=[{**via, "threat": "strong"}, *LABELS], base=base)
    (job,) = plan_jobs(asked)
    place = Place(tmp_path, tmp_path / "runs")
    result = run_job(job, place, torch.device("cpu"), attack_page)
    assert result["status"] == "complete", result.get("traceback")
    refused, labels = result["attacks"]
    assert refused["verdict"] == "refused" and "recovered no prototype" in refused["because"]
    assert set(frame([result])["attack"]) == {"labels"} and labels["measures"]


def test_a_page_is_written_while_the_next_attack_runs(tmp_path, monkeypatch):
    """A page that waits for the next attack to begin would wait in vain if it came before it."""
    calls, second = [], threading.Event()
    attack = sweep.attack

    def counted(*given, **how):
        calls.append(1)
        if len(calls) == 2:
            second.set()
        return attack(*given, **how)

    def page(result):
        if not second.wait(60):
            raise RuntimeError("no second attack")
        if result.trial.settings.evaluation.seed == 1:
            raise RuntimeError("no room for a page")

    monkeypatch.setattr(sweep, "attack", counted)
    labels = {"attack": {"name": "labels"}, "target": "labels", "threat": "realistic"}
    for seed, status in ((2, "complete"), (1, "failed")):
        asked = wanted(schemes=["rap"], attacks=[labels, {**labels, "eval": {"seed": seed}}])
        (job,) = plan_jobs(asked)
        result = run_job(job, Place(tmp_path, tmp_path / "runs"), torch.device("cpu"), page)
        assert result["status"] == status, result.get("traceback")
    assert "no room for a page" in result["failure"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two variants, one of which fails in its own process; the other has two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    module = folder / "failing_scheme.py"
    module.write_text(
        "from dataclasses import dataclass\n"
        "from fedre_privacy.entanglement.base import Entanglement\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Failing(Entanglement):\n"
        "    def sample_weights(self, labels, num_classes, rng):\n"
        "        raise RuntimeError('this scheme is broken')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        # jobs find a scheme in the working directory, and are not misled by a folder of our name
        (folder / "fedre_privacy").mkdir()
        (folder / "fedre_privacy" / "__init__.py").write_text("raise ImportError('the wrong one')")
        patch.chdir(folder)
        allow_module_paths("failing_scheme:Failing")
        asked = wanted(schemes=["failing_scheme:Failing", "vap"], seeds=[0, 1])
        made = benchmark(asked, folder=folder / "out", runs=folder / "runs", workers=CORES)
        yield folder, asked, made
    sys.modules.pop("failing_scheme", None)


@pytest.mark.slow
def test_a_broken_scheme_is_named_and_left_out(finished):
    folder, _, made = finished
    failures = made.failures()
    assert len(failures) == 2 and all("this scheme is broken" in text for text in failures)
    result = json.loads(next((folder / "out" / "jobs").glob("Failing-s0*.json")).read_text())
    assert result["status"] == "failed" and "RuntimeError" in result["traceback"]
    assert set(made.summary["label"]) == {"vap"} and made.summary["seeds"].eq(2).all()
    (row,) = made.table()
    assert row["variant"] == "vap" and row["labels: support Jaccard"].startswith("1.00 (")
    assert (folder / "out" / "results.csv").is_file()
    settings = list((folder / "out" / "jobs").glob("*.yaml"))
    assert settings and all(path.with_suffix(".log").is_file() for path in settings)
    assert not list(folder.glob("*.log"))


@pytest.mark.slow
def test_what_is_finished_is_not_repeated(finished, monkeypatch):
    folder, asked, made = finished

    def never(*_):
        raise AssertionError("a job was started again")

    monkeypatch.setattr(processes, "call", never)
    again = benchmark(asked, folder=folder / "out", runs=folder / "runs")
    pd.testing.assert_frame_equal(again.rows, made.rows)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_result(finished, tmp_path):
    """Lose one result and break off one run: what is missing is done again, the same."""
    folder, asked, made = finished
    job = next(job for job in plan_jobs(asked) if job.label == "vap")
    place = Place(folder / "out", folder / "runs")
    before = place.read(job)
    place.result(job).unlink()
    shutil.rmtree(folder / "runs" / before["run"] / "attacks")
    record = folder / "runs" / before["run"] / "record.json"
    broken = json.loads(record.read_text())
    record.write_text(json.dumps({**broken, "status": "partial"}))
    again = benchmark(asked, folder=folder / "out", runs=folder / "runs")
    after = place.read(job)
    times = {"wall_s", "round_s"}
    assert {k: v for k, v in after.items() if k not in times} == {
        k: v for k, v in before.items() if k not in times
    }
    rows, others = (found.rows.drop(columns="round_s") for found in (again, made))
    pd.testing.assert_frame_equal(rows, others)


LONG = """
import os
import signal
from pathlib import Path
from test_sweep_settings import asked
from fedre_privacy.api.workflows import PAGE
from fedre_privacy.benchmarking.benchmark import benchmark
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a script's background
place = {"folder": Path("out"), "runs": Path("runs")}
benchmark(asked, **place, workers=os.cpu_count() or 1, page=PAGE)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_sweep_leaves_no_job_behind(tmp_path, how):
    """Break off the sweep's own process while a job trains: the job ends too."""
    settings = (
        "from fedre_privacy.benchmarking.variants import read_sweep\n"
        f"BASE = {BASE | {'train': BASE['train'] | {'rounds': 10**4}}!r}\n"  # fits any disk
        "asked = read_sweep({'protocols': ['fedgh'], 'seeds': [0], 'attacks': [], 'name': 'x'}, "
        "BASE, name='')\n"
    )
    (tmp_path / "test_sweep_settings.py").write_text(settings)
    said = tmp_path / "said.txt"
    with said.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", LONG], cwd=tmp_path, stdout=out, stderr=out
        )
    job = None
    try:
        # the job trains: it has written its first round
        _until(lambda: list(tmp_path.glob("runs/*/metrics.csv")) or process.poll() is not None)
        assert process.poll() is None, said.read_text()
        (job,) = _children(process.pid)
        assert _alive(job)
        process.send_signal(how)
        _until(lambda: process.poll() is not None)
        assert process.returncode != 0
        _until(lambda: not _alive(job))
    finally:
        process.kill()
        process.wait()
        if job is not None and _alive(job):
            os.kill(job, signal.SIGKILL)
    results = [path.read_text() for path in (tmp_path / "out" / "jobs").glob("*.json")]
    assert not results  # to be done again


def _children(pid: int) -> list[int]:
    """Processes that any thread of a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _alive(pid: int) -> bool:
    """Whether a process runs: one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _until(met, seconds=900):
    """Wait; the limit is there to end a test that hangs, however slow the machine is."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"it did not happen in {seconds} s"
        time.sleep(0.2)


@pytest.mark.slow
def test_a_pruned_run_is_trained_again_where_its_result_is_lost(finished):
    folder, asked, made = finished
    job = next(job for job in plan_jobs(asked) if job.label == "vap")
    place = Place(folder / "out", folder / "runs")
    before = place.read(job)
    place.result(job).unlink()
    for name in ("models", "uploads", "private"):
        shutil.rmtree(folder / "runs" / before["run"] / name)
    shutil.rmtree(folder / "runs" / before["run"] / "attacks")
    run_job(job, place, torch.device("cpu"), attack_page)
    after = place.read(job)
    assert after["status"] == "complete", after.get("traceback")
    assert after["attacks"] == before["attacks"] and after["final"] == before["final"]


ROUNDS = [
    {"attack": {"name": "disentangle", **limit}, "target": "uploaded", "threat": "strong",
     "eval": {"round": attacked}}
    for attacked, limit in ((2, {}), (6, {}), (6, {"rounds": 2}), (6, {"rounds": 4}))
]  # fmt: skip


@pytest.fixture(scope="module")
def several_rounds(tmp_path_factory):
    """One training, attacked after 2 and after 6 rounds, and from the latest rounds only."""
    folder = tmp_path_factory.mktemp("rounds")
    base = {**BASE, "train": {**BASE["train"], "rounds": 6}}
    asked = read_sweep(
        {"name": "r", "schemes": ["rap"], "seeds": [0], "attacks": ROUNDS}, base, name=""
    )
    return benchmark(asked, folder=folder / "out", runs=folder / "runs", workers=CORES)


@pytest.mark.slow
def test_rounds_are_told_apart_and_never_averaged(several_rounds):
    made = several_rounds
    assert not made.failures()
    cosine = made.summary[
        (made.summary["measure"] == "centred_cosine") & (made.summary["group"] == "")
    ]
    asked = list(zip(cosine["round"], cosine["rounds_limit"].fillna(0), strict=True))
    assert asked == [(2, 0), (6, 0), (6, 2), (6, 4)]
    stored = {(r["round"], r["rounds_limit"] or 0): r for r in _results(made)}
    for row in cosine.to_dict("records"):
        limit = 0 if pd.isna(row["rounds_limit"]) else int(row["rounds_limit"])
        measures = {(m["key"], m["group"]): m for m in stored[row["round"], limit]["measures"]}
        assert row["value"] == measures["centred_cosine", ""]["value"]
    attacked, read = (
        made.over_rounds(across).query("panel == 'prototypes: centred cosine'")
        for across in ("attacked", "read")
    )
    assert list(attacked["rounds"]) == [2, 6] and sorted(read["rounds"]) == [2, 4, 6]
    assert attacked["line"].nunique() == read["line"].nunique() == 1
    for name in ("rounds-attacked", "rounds-read"):
        for ending in ("png", "pdf", "csv"):
            assert (made.folder / f"{name}.{ending}").stat().st_size > 0
        assert name in (made.folder / "report.html").read_text()
    assert list(pd.read_csv(made.folder / "rounds-attacked.csv")["rounds"].unique()) == [2, 6]


def _results(made):
    (result,) = (made.folder / "jobs").glob("*.json")
    return json.loads(result.read_text())["attacks"]


@pytest.mark.slow
def test_attacks_on_one_round_are_not_drawn_against_rounds(finished):
    folder, _, made = finished
    assert made.over_rounds("attacked").empty and made.over_rounds("read").empty
    assert not list((folder / "out").glob("rounds-*"))
    with pytest.raises(ConfigError, match="no attack was run at two"):
        made.rounds_figure("read")


@pytest.mark.slow
def test_the_matrix_says_what_cannot_be_read(finished):
    _, _, made = finished
    cells = made.cells()
    assert set(cells["variant"]) == {"vap"} and cells["over"].notna().all()
    assert made.matrix().get_axes()


def measured(label="fedgh", protocol="fedgh", scalars=100, attacks=()):
    """A finished job, as it lies on disk."""
    return {
        "label": label, "seed": 0, "status": "complete", "attacks": list(attacks),
        "training": {"protocol": {"name": protocol}, "train": {"rounds": 3}},
        "final": {"acc_post_local": 0.5, "acc_post_broadcast": 0.5, "up_scalars": scalars},
    }  # fmt: skip


def asked_of(verdict, because="", attack="dip", values=()):
    measures = [
        asdict(Measure(key="psnr", title="PSNR", value=v, floor=10.0, over=v - 10.0, n=9,
                       shown="frontier"))
        for v in values
    ]  # fmt: skip
    return {"attack": attack, "answers": "images", "target": "uploaded", "threat": "strong",
            "verdict": verdict, "because": because, "counterfactual": False,
            "measures": measures}  # fmt: skip


def test_what_sends_nothing_tells_nothing_and_a_refusal_is_not_safety(tmp_path):
    jobs = [
        measured("local", "local", scalars=0),
        measured(attacks=[asked_of("leaks", values=[13.0]),
                          asked_of("refused", "too few images", attack="linear")]),
    ]  # fmt: skip
    rows = frame(jobs)
    made = BenchmarkResult(
        tmp_path, rows, over_seeds(rows), wanted(schemes=["vap"]), jobs, tmp_path
    )
    local, other = made.points()
    assert local.over == 0 and local.attack == SILENT and other.over == 3
    told = {row["variant"]: row["images: PSNR over floor"] for row in made.table()}
    assert told["local"] == "0 by construction" and told["fedgh"].startswith("3.00")
    cells = made.cells().set_index(["variant", "attack"])
    assert cells.loc[("fedgh", "linear on uploaded"), "because"] == "too few images"
    shown = {text.get_text() for text in made.matrix().get_axes()[0].texts}
    assert {"inconclusive: refused", "0: sends nothing", "+3.00"} <= shown
    assert made.figure().get_axes()


def test_means_are_over_seeds_and_say_how_many():
    def job(label, seed, status, value):
        psnr = Measure(key="psnr", title="PSNR", value=value, floor=10.0, over=value - 10.0, n=4,
                       unit="dB", shown=FRONTIER)  # fmt: skip
        entry = {"attack": "a", "answers": "images", "target": "t", "threat": "s",
                 "counterfactual": False, "verdict": "v", "folder": "f",
                 "measures": [asdict(psnr)]}  # fmt: skip
        done = status == "complete"
        return {
            "label": label, "seed": seed, "status": status, "attacks": [entry] if done else [],
            "training": {"protocol": {"name": "fedgh"}}, "failure": None if done else "why",
            "final": {"acc_post_broadcast": 0.5 + seed / 10, "up_scalars": 7} if done else None,
        }  # fmt: skip

    rows = frame([job("x", 0, "complete", 12.0), job("x", 1, "complete", 16.0),
                  job("x", 2, "failed", 99.0)])  # fmt: skip
    (mean,) = over_seeds(rows).to_dict("records")
    assert pd.isna(mean["rounds_limit"])
    assert (mean["seeds"], mean["failed"], mean["n"]) == (2, 1, 8)
    assert mean["over"] == 4.0 and mean["value"] == 14.0
    assert mean["accuracy"] == pytest.approx(0.55)
    made = BenchmarkResult(
        Path("x"), rows, over_seeds(rows), wanted(protocols=["fedre"]), [], Path("x")
    )
    assert made.failures() == ["x, seed 2: why"]
    assert made.points()[0].over == 4.0


def test_the_strongest_attack_is_chosen_on_other_seeds():
    """Three attacks of nothing: the best of three means would be above the floor."""
    overs = {"a": (3.0, -1.0, -2.0), "b": (-1.0, 2.0, -1.0), "c": (-2.0, -1.0, 3.0)}
    jobs = [
        {**measured(attacks=[asked_of("leaks", attack=name, values=[10.0 + over[seed]])
                             for name, over in overs.items()]), "seed": seed}
        for seed in range(3)
    ]  # fmt: skip

    def points(jobs):
        rows = frame(jobs)
        result = BenchmarkResult(
            Path("x"), rows, over_seeds(rows), wanted(protocols=["fedgh"]), jobs, Path("x")
        )
        return result.points(), result.table()

    ((point,), (row,)) = points(jobs)
    # seed 0 takes c (1.0 on the others), seed 1 takes a or c, seed 2 takes a or b
    assert point.over == pytest.approx((-2.0 - 1.0 - 2.0) / 3) and point.over_sd is not None
    assert point.chosen == row["strongest chosen on"] == "the other seeds"
    ((one,), (row,)) = points(jobs[:1])
    assert one.over == 3.0 and one.chosen == row["strongest chosen on"] == "the seed reported"


def test_a_result_of_an_earlier_version_is_refused(tmp_path):
    (job,) = plan_jobs(wanted(protocols=["fedgh"]))
    place = Place(tmp_path, tmp_path / "runs")
    path = place.result(job)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"attacks": [{"measures": [{"name": "PSNR"}]}]}))
    with pytest.raises(DamagedInputError, match="an earlier version wrote it") as refused:
        place.read(job)
    assert f"Remove {path.parent}" in str(refused.value)


@pytest.mark.slow
def test_ray_does_the_same_jobs(tmp_path):
    pytest.importorskip("ray", reason="needs the extra: pip install 'fedre-privacy[ray]'")
    asked = wanted(schemes=["vap"], seeds=[0])
    made = [
        benchmark(asked, folder=tmp_path / engine, runs=tmp_path / f"{engine}-runs", engine=engine)
        for engine in ("local", "ray")
    ]
    assert not made[0].summary.empty
    pd.testing.assert_frame_equal(made[0].summary, made[1].summary)
