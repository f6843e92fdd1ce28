"""The parts that docs/add_your_own.md shows: as somebody else's package, and as built-in ones."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
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
    broken = [line for line in done.stdout.splitlines() if line.startswith("BROKEN")]
    assert done.returncode == 0, broken or done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_kind_has_a_complete_example_of_forty_lines_at_most():
    groups = {group.removeprefix("fedre_privacy.") for group in points()}
    assert groups == set(HOMES) == set(KINDS)
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
  fedgh under noise: {protocol: {name: fedgh}, model: {name: wide-net}, defense: [uniform-noise]}
seeds: [0]
targets: 4
"""
HOMES = {
    "entanglement": ("entanglement", "schemes"),
    "protocols": ("protocols", "protocols"),
    "defenses": ("defenses", "defenses"),
    "attacks": ("attacks", "attacks"),
    "attacks.shadow_attacks": ("attacks/shadow_attacks", "shadow_attacks"),
    "experiments.questions": ("experiments/questions", "questions"),
    "eval.metrics": ("eval/metrics", "metrics"),
    "threats": ("threats", "threats"),
    "active_server": ("active_server", "steerings"),
    "active_server.detectors": ("active_server/detectors", "detectors"),
    "data": ("data", "datasets"),
    "models.zoo": ("models/zoo", "architectures"),
    "partition": ("partition", "partitions"),
}
"""Where built-in parts of a group live, and the registry that `base` of that folder has."""
KINDS = {
    "entanglement": "scheme", "protocols": "protocol", "defenses": "defense", "attacks": "attack",
    "experiments.questions": "question", "eval.metrics": "metric", "threats": "threat",
    "active_server": "steering", "active_server.detectors": "detector", "data": "dataset",
    "models.zoo": "model", "partition": "partition", "attacks.shadow_attacks": "shadow-attack",
}  # fmt: skip


@pytest.fixture(scope="module")
def tree(repo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the examples among its own files, each registered in its room."""
    root: Path = tmp_path_factory.mktemp("tree")
    package = root / "fedre_privacy"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repo / "fedre_privacy", package, ignore=ignore)
    for room in ("attacks", "defenses", "eval"):
        shutil.copytree(repo / room, package / room, ignore=ignore)
    homes: dict[str, str] = {}
    for group, own in points().items():
        room, registry = HOMES[group.removeprefix("fedre_privacy.")]
        home = f"fedre_privacy.{room.replace('/', '.')}"
        for name, (module, what) in own.items():
            (block,) = [b for b in blocks() if re.search(rf"^(class )?{what}\b", b, re.MULTILINE)]
            if module in homes:  # an attack and its question in one file
                path = package / homes[module]
                text = path.read_text(encoding="utf-8")
            else:
                homes[module] = f"{room}/{module}.py"
                path = package / homes[module]
                text = f'"""An example."""\n\n{block}'
            path.write_text(registered(text, f"{home}.base", registry, name, what), "utf-8")
    return root


def registered(text: str, home: str, registry: str, name: str, what: str) -> str:
    """The text of a module whose class, or value, registers itself as built-in parts do."""
    first = text.index("\nfrom ") + 1
    text = f"{text[:first]}from {home} import {registry}\n{text[first:]}"
    if re.search(rf"^{what} = ", text, re.MULTILINE):
        return f"{text.rstrip()}\n{registry}.register({what}, __name__)\n"
    here = re.search(rf"^(@dataclass.*\n)?class {what}\b", text, re.MULTILINE)
    assert here is not None
    return f'{text[: here.start()]}@{registry}.register("{name}")\n{text[here.start() :]}'


@pytest.mark.slow
def test_the_examples_keep_the_promises_as_plug_ins(site, tmp_path):
    said = run(site, "-m", "fedre_privacy.testing", at=tmp_path)
    lines = said.splitlines()
    assert lines[-1].endswith(" 0 broken") and len(lines) > 60
    checked = {(line[10:].split(":")[0]) for line in lines[:-1]}
    assert checked == {
        f"{KINDS[group.removeprefix('fedre_privacy.')]} {name}"
        for group, own in points().items()
        for name in own
    }


@pytest.mark.slow
def test_the_examples_keep_the_promises_as_built_in_parts(tree, tmp_path):
    parts = [
        f"{KINDS[group.removeprefix('fedre_privacy.')]}:{name}"
        for group, own in points().items()
        for name in own
    ]
    where = run(tree, "-c", "import fedre_privacy; print(fedre_privacy.__file__)", at=tmp_path)
    assert where.startswith(str(tree))
    said = run(tree, "-m", "fedre_privacy.testing", *parts, at=tmp_path)
    assert said.splitlines()[-1].endswith(" 0 broken")
    listed = run(tree, "-m", "fedre_privacy.cli.attack", "list", "--json", at=tmp_path)
    assert json.loads(listed.splitlines()[-1])["broken"] == []
    assert all(f'"{part.partition(":")[2]}"' in listed for part in parts)


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
    assert len(jobs) == 3 and all(job["status"] == "complete" for job in jobs)
    attacked = {one["attack"]: one["verdict"] for job in jobs for one in job["attacks"]}
    assert attacked["nearest-public"] not in ("refused", "")
