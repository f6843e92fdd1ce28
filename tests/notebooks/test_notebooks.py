"""Every notebook runs from top to bottom, and is kept without outputs."""

from __future__ import annotations

import json

import pytest

NAMES = ("first_attack", "bring_your_own_uploads", "new_scheme", "frontier")


def test_these_are_all_notebooks(repo):
    assert sorted(path.stem for path in (repo / "notebooks").glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_kept_without_outputs(repo, name):
    book = json.loads((repo / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in book["cells"]]
    assert len(ids) == len(set(ids))
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            assert "".join(cell["source"]).strip()


@pytest.mark.slow
def test_first_attack(cells, execute):
    found = execute(cells("first_attack"))
    assert found["prototypes"].trial.counterfactual and not found["entangled"].trial.counterfactual
    assert (found["prototypes"].folder / "report.html").is_file()
    assert len(found["attacked"]) == found["prototypes"].card.targets


def test_bring_your_own_uploads(cells, execute, capsys):
    found = execute(cells("bring_your_own_uploads"))
    assert found["recovered"].images.shape == (10, 1, 16, 16)
    assert found["scores"].targets == 10
    assert "returns 7 values; its upload holds 128" in capsys.readouterr().out


@pytest.mark.slow
def test_new_scheme(cells, execute, in_process):
    result = execute(cells("new_scheme"))["result"]
    assert result.failures() == []
    assert [row["variant"] for row in result.table()] == ["RandomPart", "rap"]
    assert set(result.frame()["attack"]) == {"disentangle", "labels", "dip"}


@pytest.mark.slow
def test_frontier(cells, execute, in_process):
    found = execute(cells("frontier"))
    assert found["result"].failures() == [] and found["more"].failures() == []
    assert {point.label for point in found["result"].points()} == {"fedre", "fedproto"}
    assert all(point.over is not None for point in found["result"].points())
    assert [row["variant"] for row in found["more"].table()] == ["fedre", "fedre, 2 epochs"]


@pytest.mark.slow
def test_a_file_beside_the_notebook_reaches_the_processes_of_a_benchmark(cells, execute):
    pieces = cells("new_scheme")
    fp = execute([piece for piece in pieces if "write_text" in piece or "as fp" in piece])["fp"]
    result = fp.benchmark(
        schemes=["my_schemes:RandomPart"],
        seeds=[0],
        attacks=["labels@uploaded@realistic"],
        clients=4,
        rounds=1,
        set={"data.size": 16, "data.per_class": 12},
    )
    assert result.failures() == [] and len(result.table()) == 1
