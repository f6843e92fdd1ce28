"""The parts that docs/add_your_own.md shows, installed as somebody else's package."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "add_your_own.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
LONGEST = 40

Points = dict[str, dict[str, tuple[str, str]]]


def blocks() -> list[str]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def points() -> Points:
    """The entry points that the page declares: group to name to module and object."""
    (ini,) = re.findall(r"```ini\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    given = configparser.ConfigParser(delimiters=("=",))
    given.read_string(ini)
    found: Points = {}
    for group, text in given["options.entry_points"].items():
        lines = [line for line in text.splitlines() if line.strip()]
        pairs = [[part.strip() for part in line.split("=")] for line in lines]
        found[group] = {name: tuple(value.split(":")) for name, value in pairs}  # type: ignore[misc]
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as pip leaves it: one module a part, and the package's entry points."""
    folder: Path = tmp_path_factory.mktemp("site")
    lines = []
    for group, own in points().items():
        lines.append(f"[{group}]")
        for name, (module, what) in own.items():
            (block,) = [b for b in blocks() if re.search(rf"^(class )?{what}\b", b, re.MULTILINE)]
            (folder / f"{module}.py").write_text(f'"""An example."""\n{block}', encoding="utf-8")
            lines.append(f"{name} = {module}:{what}")
    about = folder / "somebody_elses-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-elses\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def run(site: Path, *command: str, at: Path) -> str:
    """Run Python with the package installed; return what it printed."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, *command], cwd=at, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_kind_has_a_complete_example_of_forty_lines_at_most():
    groups = {group.removeprefix("fedre_privacy.") for group in points()}
    assert groups == {
        "entanglement", "protocols", "defenses", "attacks", "eval.metrics", "threats", "data",
        "partition", "play.questions", "steering", "detectors", "models.zoo", "attacks.shadows",
    }  # fmt: skip
    assert all(len(block.splitlines()) <= LONGEST for block in blocks())
    assert re.search(r"^kind|^    kind = ", "\n".join(blocks()), re.MULTILINE)


@pytest.mark.slow
def test_every_example_is_listed(site, tmp_path):
    said = run(site, "-m", "fedre_privacy.cli.attack", "list", "--json", at=tmp_path)
    listed = json.loads(said.splitlines()[-1])
    assert listed["broken"] == []
    for group, own in points().items():
        for name in own:
            assert f'"{name}"' in said or f"{name}," in said or f", {name}" in said, (group, name)


BENCHMARK = """\
base:
  data: {name: stripes, per_class: 24}
  partition: {name: sorted, pieces: 4}
  model: {name: cnn4, dim: 32}
  train: {clients: 3, rounds: 2, batch_size: 8}
protocols: [few-shot]
schemes: [top-heavy]
vary:
  fedgh under noise: {protocol: {name: fedgh}, defense: [uniform-noise]}
  fedproto on a wide net: {protocol: {name: fedproto}, model: {name: wide-net}}
seeds: [0]
targets: 4
"""
CONTRACTS = (
    "few-shot or mean-head or sparse-proto or nearest-public or max-error or stripes or sorted "
    "or few-means "
    "or uniform-noise or leaked-model or top-heavy or smoothed or largest-class or name-largest "
    "or one-class or large-row or wide-net"
)


@pytest.mark.slow
def test_the_examples_keep_the_contracts(site, repo):
    here = str(repo / "tests" / "contracts")
    skip = ["--deselect", f"{here}/test_add_your_own.py", "-p", "no:cacheprovider"]
    said = run(site, "-m", "pytest", "-q", here, "-k", CONTRACTS, *skip, at=repo)
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) > 25 and "failed" not in said, said[-2000:]


@pytest.mark.slow
def test_the_examples_are_benchmarked_and_drawn(site, tmp_path):
    (tmp_path / "sweep.yaml").write_text(BENCHMARK, encoding="utf-8")
    said = run(site, "-m", "fedre_privacy.cli.benchmark", "sweep.yaml", "--json", at=tmp_path)
    folder = tmp_path / json.loads(said.splitlines()[-1])["folder"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    results = (folder / "results.csv").read_text(encoding="utf-8")
    drawn = {name: (folder / f"{name}.csv").read_text() for name in ("comparison", "matrix")}
    for label in ("few-shot", "top-heavy", "fedgh under noise"):
        assert label in page and label in results and all(label in text for text in drawn.values())
    for part in ("nearest-public", "largest class named"):
        assert part in page and part in results
    assert "nearest-public" in drawn["matrix"]
    assert all((folder / f"{name}.png").is_file() for name in ("frontier", *drawn))
    jobs = [json.loads(path.read_text()) for path in (folder / "jobs").glob("*.json")]
    assert len(jobs) == 4 and all(job["status"] == "complete" for job in jobs)
    attacked = {one["attack"]: one["verdict"] for job in jobs for one in job["attacks"]}
    assert attacked["nearest-public"] not in ("refused", "")
