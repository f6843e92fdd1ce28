"""The page about Python: each block runs, and says what is so."""

from __future__ import annotations

import pytest
from PIL import Image

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_every_block_runs(blocks, execute, in_process, tmp_path, capsys):
    (tmp_path / "my_photographs").mkdir()
    Image.new("RGB", (40, 50)).save(tmp_path / "my_photographs" / "1.jpg")
    pieces = blocks("python")
    assert len(pieces) >= 6
    found = execute(pieces)
    said = capsys.readouterr().out
    assert "attack.stepps" in said and "eval.gallery" in said  # both problems at once
    assert found["by_object"].folder == found["by_name"].folder
    assert found["compared"].failures() == []
    assert found["photographs"].shape == (1, 3, 32, 32)
    assert "fedproto (weight=0.5)" in {row["variant"] for row in found["compared"].table()}
    assert found["images"].shape[1:] == (1, 16, 16)
    assert (tmp_path / "attack.png").stat().st_size > 1000
    assert (found["result"].folder / "report.html").is_file()
    assert (found["compared"].folder / "report.html").is_file()
