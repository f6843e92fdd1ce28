"""The gallery shows what the published files say, and nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def gallery() -> dict[str, Any]:
    return runpy.run_path(str(RESULTS / "gallery.py"))


def test_every_published_attack_has_an_entry_with_its_numbers(gallery):
    attacks = gallery["read_attacks"]()
    benchmark, *entries = gallery["entries"]()
    asked = attacks[attacks["attack"].notna()]
    keys = ["label", "attack", "target", "threat", "round"]
    assert len(entries) == len(asked.groupby(keys)) == len({entry.path for entry in entries})
    rows = sum(len(entry.tables[0].rows) for entry in entries)
    assert rows == len(asked)
    (dip,) = [
        one
        for one in entries
        if one.facets["protocol"] == "fedgh"
        and one.facets["attack"] == "dip"
        and one.facets["adversary"] == "fedre-paper"
    ]
    own = asked[(asked["label"] == "fedgh") & (asked["attack"] == "dip")]
    (psnr,) = own[(own["measure"] == "psnr") & own["group"].isna()].to_dict("records")
    assert dip.score.over == psnr["over"] and dip.n == psnr["n"]
    assert all(entry.targets is None for entry in entries)
    (panel,) = benchmark.panels
    placed = {point.label: point for point in panel.points}
    assert placed["fedre"].accuracy == 0.695 and placed["local"].over == 0.0
    assert set(placed) == set(attacks["label"])
    assert "frontier.yaml" in benchmark.facts["Command"]


def test_the_page_is_one_file_without_private_data(gallery, tmp_path, capsys):
    path = tmp_path / "gallery.html"
    assert gallery["main"](["--out", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert "fedre, disentangle on uploaded" in text and '"truth":false' in text
    assert capsys.readouterr().out == f"{path}\n"
