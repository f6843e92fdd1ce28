"""The queue of jobs for a GPU: results as files, time kept, nothing done twice, and a rehearsal."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest


@pytest.fixture
def scheduling(load):
    return load("scheduling")


@pytest.fixture
def queue(scheduling, tmp_path):
    """Run jobs given as (name, code, what else a `Job` takes); return results and what was said."""

    def made(*given, minutes=1.0, most=2, on=None):
        results = scheduling.Results(tmp_path / "results")
        said = []
        jobs = [
            scheduling.Job(
                name, how.pop("kind", name), how.pop("minutes", 0.0), ("-c", code, "{out}"), **how
            )
            for name, code, how in [(*one, {})[:3] for one in given]
        ]
        on = on or {"gpu": "", "processor": "a", "commit": "c", "torch": "t"}
        work = scheduling.Scheduler(results, tmp_path / "scratch", {}, on, said.append)
        work.work(jobs, time.monotonic() + 60 * minutes, most)
        return results, said

    return made


def test_a_result_holds_command_machine_and_what_was_printed(queue, scheduling):
    results, _ = queue(("good", "print(1); print(2)"), ("bad", "print(3); raise SystemExit(4)"))
    good, bad = results.read("good"), results.read("bad")
    assert good["status"] == scheduling.DONE and good["lines"] == ["1", "2"]
    assert good["machine"]["commit"] == "c" and good["command"].startswith("python -c")
    assert bad["status"] == scheduling.FAILED and bad["lines"] == ["3"]
    assert not results.done("bad") and results.done("good")


def test_a_job_that_is_done_is_not_done_again_and_others_are(queue):
    queue(("one", "print(1)"), ("two", "raise SystemExit(1)"))
    results, said = queue(("one", "print(5)"), ("two", "print(6)"))
    assert results.read("one")["lines"] == ["1"] and results.read("two")["lines"] == ["6"]
    assert [text.split(":")[0] for text in said] == ["two"]


def test_what_a_job_writes_itself_is_its_result(queue):
    code = "import sys, json; open(sys.argv[1], 'w').write(json.dumps({'found': 7}))"
    results, _ = queue(("one", code), ("two", f"{code}; raise SystemExit(1)"))
    assert results.read("one")["found"] == 7 and results.read("one")["status"] == "done"
    assert results.read("two")["status"] == "failed"
    assert "{out}" in results.read("one")["command"]  # no folder of this machine


def test_a_job_is_cut_when_the_time_is_over(queue, scheduling):
    results, _ = queue(("long", "import time; print(5, flush=True); time.sleep(60)"), minutes=0.05)
    found = results.read("long")
    assert found["status"] == scheduling.CUT and found["lines"] == ["5"] and found["seconds"] < 30


def test_a_job_without_the_time_is_not_begun_and_earlier_ones_of_its_kind_tell_it(queue):
    results, said = queue(("slow", "print(1)", {"minutes": 5.0}))
    assert results.read("slow") is None and "300 s expected" in said[0]
    queue(("quick", "print(1)", {"kind": "k"}))
    results, _ = queue(("next", "print(1)", {"kind": "k", "minutes": 5.0}))
    assert results.done("next")  # the first of its kind took less
    other = {"gpu": "G", "processor": "a", "commit": "c", "torch": "t"}
    results, said = queue(("third", "print(1)", {"kind": "k", "minutes": 5.0}), on=other)
    assert results.read("third") is None  # another machine tells nothing


def test_nothing_runs_beside_a_job_that_measures_speed(queue):
    code = "import time; print(time.time()); time.sleep(0.5); print(time.time())"
    results, _ = queue(("a", code), ("b", code, {"alone": True}), ("c", code), ("d", code), most=4)
    spans = {n: [float(line) for line in results.read(n)["lines"]] for n in "abcd"}
    for name in "acd":
        apart = spans[name][1] <= spans["b"][0] or spans["b"][1] <= spans[name][0]
        assert apart, spans
    assert spans["c"][0] < spans["d"][1] and spans["d"][0] < spans["c"][1]  # these share


def test_a_job_waits_for_the_one_that_it_needs(queue):
    code = "import time; time.sleep(0.5); print(time.time())"
    results, said = queue(
        ("suite", "import time; print(time.time())", {"after": "training"}),
        ("training", code),
        ("orphan", "print(1)", {"after": "absent"}),
        most=3,
    )
    times = [float(results.read(name)["lines"][0]) for name in ("training", "suite")]
    assert times[0] < times[1]
    assert results.read("orphan") is None and "absent is not done" in " ".join(said)


# --- lists ----------------------------------------------------------------------------------------


def test_the_kit_names_every_file_with_tests_of_a_gpu(load):
    kit, root = load("kit"), load("scheduling").ROOT
    marked = {
        str(path.relative_to(root))
        for path in (root / "tests").rglob("test_*.py")
        if "@pytest.mark." + "gpu" in path.read_text(encoding="utf-8")
    }
    assert marked == {word for word in kit.STEPS[0].command.split() if word.endswith(".py")}


def test_a_campaign_begins_with_what_is_worth_most_and_names_no_job_twice(load):
    campaign = load("campaign")
    for size in campaign.SIZES:
        names = [job.name for job in campaign.jobs(size, ())]
        assert len(names) == len(set(names))
        assert all(name.replace(".", "").replace("-", "").isalnum() for name in names)
    published = [job.name for job in campaign.jobs(campaign.PUBLISHED, ())]
    suites = [f"fedre-pra0.1-s0-r{round}" for round in ("001", "010", "100")]
    assert published[:4] == ["fedre-pra0.1-s0", *suites]
    trained = [one for one in campaign.trainings(campaign.PUBLISHED) if one.models == "cnn4"]
    seen = {(one.protocol, one.partition, one.seed) for one in trained if not one.defense}
    assert len(seen) == 21 * 3 * 3
    cpu = campaign.trainings(campaign.CPU)
    assert len(cpu) == 9 * 3 * 2 and {one.partition for one in cpu[:27]} == {"pra:1.0"}


def test_only_the_rounds_that_are_attacked_are_recorded(load, tmp_path):
    campaign = load("campaign")
    one = campaign.trainings(campaign.PUBLISHED)[0]
    settings = campaign.settings_of(one, campaign.SIZES[campaign.PUBLISHED], tmp_path / "x.npz")
    assert settings.record.rounds == (1, 10, 100) and settings.train.rounds == 100
    assert settings.train.lr == 0.007 and settings.train.shared_every == 10
    suite = campaign.suite_of(settings, campaign.SIZES[campaign.PUBLISHED], 10)
    assert {own.evaluation.round for own in suite} == {10}
    assert all(own.evaluation.targets == 64 and own.evaluation.fewest_first for own in suite)


# --- what travels ---------------------------------------------------------------------------------


def test_results_travel_in_one_file(load, queue, scheduling, tmp_path):
    gpu = load("gpu")
    results, _ = queue(("one", "print(1)"), ("two", "print(2)"))
    ship = tmp_path / "ship.json"
    gpu.Shipment(ship).add("kit", results, 0.0)
    assert gpu.main(["--take", str(ship), "--results", str(tmp_path / "here")]) == 0
    there = scheduling.Results(tmp_path / "here" / "kit")
    assert there.all() == results.all()
    ship.write_text(json.dumps({"../kit/one": {}}))
    with pytest.raises(SystemExit, match="no name of a result"):
        gpu.main(["--take", str(ship), "--results", str(tmp_path / "here")])
    assert not (tmp_path / "kit").exists()


def test_what_is_too_much_to_carry_is_refused(load, tmp_path, capsys, monkeypatch):
    travel = load("travel")
    (tmp_path / "data.npz").write_bytes(bytes(1000))
    words = [str(tmp_path / "data.npz"), "--no-wheels", "--to", str(tmp_path / "to")]
    assert travel.main(words) == 0
    said = capsys.readouterr().out
    assert "data.npz" in said and "the checkout" in said and "--take results.json" in said
    monkeypatch.setattr(travel, "MOST", 100)
    assert travel.main(words) == 1 and "too much" in capsys.readouterr().out
    assert travel.main([str(tmp_path / "absent")]) == 1


# --- tables ---------------------------------------------------------------------------------------


def result(headline, own, shared, status="done"):
    row = {"round": 60, f"acc_{headline}": own, f"acc_shared_{headline}": shared}
    return {
        "status": status, "kind": "training cnn4", "seconds": 1.0, "headline": headline,
        "rounds": [row], "settings": {"train": {"rounds": 60}},
        "traffic": {"up_bytes": 60 << 20, "down_bytes": 60 << 20},
        "machine": {"gpu": "", "processor": "a", "commit": "abcdefgh", "torch": "2"},
    }  # fmt: skip


@pytest.fixture
def made(load, scheduling, tmp_path):
    """Results of three protocols and three seeds: one above training alone, one beside it."""
    results = scheduling.Results(tmp_path / "cpu")
    for seed, alone in enumerate((0.50, 0.60, 0.55)):
        results.write(f"local-pra1.0-s{seed}", result("post_local", alone, 0.30))
        results.write(
            f"fedgh-pra1.0-s{seed}", result("post_broadcast", alone + 0.05 + seed / 1000, 0.35)
        )
        results.write(f"fd-pra1.0-s{seed}", result("post_local", 0.55, 0.30))
    results.write("fedre-pra1.0-s0", result("post_broadcast", 0.9, 0.9, status="cut"))
    return load("tables"), results


def test_differences_are_to_training_alone_of_the_same_seed(made):
    tables, results = made
    rows = {row.protocol: row for row in tables.rows(results)}
    assert set(rows) == {"local", "fedgh", "fd"}  # what was cut is no result
    assert rows["fedgh"].own_over == pytest.approx([5.0, 5.1, 5.2])
    low, high = tables.interval(rows["fedgh"].own_over)
    # mean 5.1, sd 0.1, t of two degrees of freedom 4.3027: 4.3027 * 0.1 / sqrt(3)
    assert (low, high) == pytest.approx((5.1 - 0.24842, 5.1 + 0.24842), abs=1e-4)
    assert tables.told_apart(rows["fedgh"].own_over) == "above"
    assert tables.told_apart(rows["fd"].own_over) == ""
    assert rows["fedgh"].sent == pytest.approx(2.0)
    text = tables.campaign_table(results)
    assert "`pra:1.0`" in text and "**+5.1 [+4.9, +5.3]**" in text
    assert tables.interval([1.0]) is None


def test_a_page_is_filled_between_its_marks_and_nowhere_else(made, tmp_path):
    tables, results = made
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- results: cpu campaign -->\nold\n<!-- end -->\nb\n")
    filled = tables.fill(page, results.folder.parent)
    assert "old" not in filled and "| `fedgh` | 3 |" in filled
    assert filled.startswith("a\n") and filled.endswith("\nb\n")
    page.write_text(filled)
    assert tables.fill(page, results.folder.parent) == filled
    assert tables.figure(results, tmp_path / "drawn").is_file()


def test_tables_in_the_docs_are_those_of_the_results(load, repo):
    tables = load("tables")
    for page in [*(repo / "docs").glob("*.md"), *(repo / "results").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        assert tables.fill(page, repo / "benchmarks" / "results") == text, page.name


GPU = re.compile(r"\b(?:[AHBLV]\d{2,3}0?|RTX|GTX|T4)\b(?!\.)")


def test_a_number_of_a_gpu_has_a_file_or_says_that_it_has_none(repo):
    for page in [*repo.glob("*.md"), *repo.glob("docs/*.md"), *repo.glob("results/*.md")]:
        text = re.sub(r"<!-- results: .*?<!-- end -->", "", page.read_text("utf-8"), flags=re.S)
        for section in re.split(r"^## ", text, flags=re.M):
            if GPU.search(section) and re.search(r"\d\.\d", section):
                assert "not kept" in section, f"{page.name}: {section.splitlines()[0]}"


# --- the rehearsal --------------------------------------------------------------------------------

BLOCKER = """
import importlib.abc, sys
BLOCKED = {blocked!r}
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in BLOCKED:
            raise ModuleNotFoundError(f'{{name}} is not on the machine of a GPU', name=name)
sys.meta_path.insert(0, Blocker())
"""


def modules_that_are_not_there(root):
    """Installed top-level modules that belong to none of the packages that a GPU's machine has."""
    listed = [
        line.partition("#")[0].strip().lower().replace("_", "-")
        for name in ("gpu-packages.txt", "gpu-requirements.txt")
        for line in (root / "benchmarks" / name).read_text(encoding="utf-8").splitlines()
    ]
    allowed = {line for line in listed if line}

    def there(package):
        plain = package.lower().replace("_", "-")
        return plain in allowed or plain.startswith(("nvidia", "cuda"))

    packages = importlib.metadata.packages_distributions()
    ours = {"fedre_privacy", "pip"}
    return sorted(
        module for module, owners in packages.items()
        if not any(map(there, owners)) and module not in ours and not module.startswith("_")
    )  # fmt: skip


@pytest.mark.slow
def test_every_job_runs_at_toy_size_where_it_is_carried_to(load, repo, tmp_path):
    gpu, scheduling, campaign = load("gpu"), load("scheduling"), load("campaign")
    place = tmp_path / "carried"
    listed = subprocess.run(
        ["git", "-C", str(repo), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (repo / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes((repo / name).read_bytes())
    blocked = modules_that_are_not_there(repo)
    assert "mkdocs" in blocked and "numpy" not in blocked
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BLOCKER.format(blocked=blocked))
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 10
    tints = rng.integers(60, 196, (10, 1, 1, 3))
    images = (tints[labels] + rng.integers(-60, 60, (400, 32, 32, 3))).astype(np.uint8)
    np.savez(
        tmp_path / "data.npz",
        x_train=images[:300], y_train=labels[:300], x_test=images[300:], y_test=labels[300:],
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", "--rehearse", "--jobs", "2", "--minutes", "30",
         "--data", str(tmp_path / "data.npz"), "--results", str(tmp_path / "results"),
         "--runs", str(tmp_path / "runs"), "--commit", "carried",
         "--ship", str(tmp_path / "ship.json")],
        cwd=place, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = scheduling.Results(tmp_path / "results" / "toy")
    jobs = campaign.jobs(campaign.TOY, ())
    assert [job.name for job in jobs if not results.done(job.name)] == []
    steps = scheduling.Results(tmp_path / "results" / "kit")
    wanted = [step.name for step in load("kit").STEPS if step.small is not None]
    assert [name for name in wanted if not steps.done(name)] == []
    held = json.loads((tmp_path / "ship.json").read_text())
    assert len(held) == len(jobs) + len(wanted)
    one = results.read("fedre-pra0.1-s0")
    assert one["machine"]["commit"] == "carried" and one["rounds"][-1]["round"] == 2
    assert len(one["clients"]) == 2 and one["traffic"]["up_bytes"] > 0
    suites = [results.read(job.name) for job in jobs if job.after]
    told = [entry for suite in suites for entry in suite["attacks"] if "measures" in entry]
    assert any(m["floor"] is not None and m["n"] for e in told for m in e["measures"])
    assert gpu.unpack(tmp_path / "ship.json", tmp_path / "back") == len(held)


@pytest.mark.slow
def test_the_checkout_is_imported_from_links(load):
    gpu = load("gpu")
    with gpu.importable() as folder:
        code = "import fedre_privacy.attacks.base as a; print(a.__file__)"
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": folder},
        )  # fmt: skip
        assert os.path.realpath(done.stdout.strip()) == str(gpu.ROOT / "attacks" / "base.py")
