"""Code and attacks that pages show run as they stand; test_python_page.py has those of its page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fedre_privacy.cli import attack

pytestmark = pytest.mark.slow

SMALL = ["--set", "attack.steps=2", "--set", "data.per_class=40", "--clients", "3", "--rounds", "1"]


def commands(repo, page):
    """The attacks that a page shows, without the name of the program."""
    text = (repo / "docs" / f"{page}.md").read_text(encoding="utf-8").replace("\\\n", "")
    return [shlex.split(line)[1:] for line in re.findall(r"^fedre-attack .*$", text, re.MULTILINE)]


def test_a_numpy_file_is_attacked_as_shown(blocks, execute, repo, capsys):
    execute(blocks("my_data"))
    (command,) = [c for c in commands(repo, "my_data") if "npz:mine.npz" in c]
    assert attack.main([*command, *SMALL]) == 0
    assert "npz" in capsys.readouterr().out


def test_a_folder_is_attacked_as_shown(execute, repo, digits, tmp_path):
    execute([])
    for number, (image, label) in enumerate(zip(digits.images, digits.labels, strict=True)):
        folder = tmp_path / "my_images" / str(int(label))
        folder.mkdir(parents=True, exist_ok=True)
        _png(image[0], folder / f"{number}.png")
    sized, plain = sorted(commands(repo, "my_data")[:2], key=len, reverse=True)
    assert "data.size=32" in sized and "imagefolder:my_images" in plain
    assert attack.main([*plain, *SMALL]) == 0
    _png(digits.images[0, 0, :10, :10], tmp_path / "my_images" / "0" / "other.png")
    assert attack.main([*plain, *SMALL]) != 0
    assert attack.main([*sized, *SMALL]) == 0


def test_photographs_without_classes_are_attacked_as_shown(execute, repo, digits, tmp_path):
    execute([])
    (tmp_path / "my_images").mkdir()
    for number, image in enumerate(digits.images[:30]):
        _png(image[0], tmp_path / "my_images" / f"{number}.png")
    (flat,) = [c for c in commands(repo, "my_data") if "iid" in c]
    assert attack.main([*flat, *SMALL]) == 0
    lines = "".join(f"{number}.png,{number % 3}\n" for number in range(30))
    (tmp_path / "my_images" / "labels.csv").write_text(f"file,label\n{lines}")
    assert attack.main([*flat, *SMALL, "--runs-dir", "labelled"]) == 0


def _png(image, path):
    from torchvision.io import write_png

    write_png(image[None], str(path))


def test_a_module_is_attacked_as_shown(blocks, execute):
    found = execute(blocks("my_model"))["found"]
    assert found.images.shape == (4, 1, 12, 12)


def test_a_recording_is_attacked_as_shown(blocks, execute, repo, tmp_path):
    execute(blocks("my_federation"))
    vectors, updates = commands(repo, "my_federation")
    for name, command in {"dip": vectors, "update-inversion": updates}.items():
        assert attack.main([*command, "--set", "attack.steps=2"]) == 0
        (page,) = tmp_path.glob(f"runs/foreign-{name}-*/report.html")
        assert "NOT SCORED" in page.read_text(encoding="utf-8")


def test_a_flower_app_is_attacked_as_shown(execute, repo, tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: extra 'flower'")
    page = (repo / "docs" / "my_flower_app.md").read_text(encoding="utf-8")
    named = re.findall(r"^\*\*`([\w.]+)`\*\*.*?^```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for name, text in named:
        (tmp_path / name).write_text(text, encoding="utf-8")
    for place in ("client0/cat", "client0/dog", "client1/cat", "client1/dog", *["public"] * 60):
        _photograph(tmp_path / "photographs" / place)
    execute([])
    for script in ("federation.py", "truth.py"):
        subprocess.run([sys.executable, script], check=True, capture_output=True, timeout=600)
    (command,) = commands(repo, "my_flower_app")
    assert attack.main([*command, "--set", "attack.steps=300"]) == 0
    monkeypatch.delitem(sys.modules, "task")
    (record,) = tmp_path.glob("runs/foreign-update-inversion-*/record.json")
    scores = {one["key"]: one for one in json.loads(record.read_text("utf-8"))["measures"]}
    assert scores["psnr"]["n"] == 4 and scores["psnr"]["value"] > scores["psnr"]["floor"] + 2
    assert scores["hit1"]["value"] == 1.0 > 0.3 > scores["hit1"]["floor"]


def _photograph(folder):
    """Noise with large structures, of another size each time."""
    folder.mkdir(parents=True, exist_ok=True)
    count = len(list(folder.iterdir()))
    rng = np.random.default_rng([count, *folder.as_posix().encode()[-12:]])
    pixels = (rng.random((5, 5, 3)) * 255).astype(np.uint8)
    image = Image.fromarray(pixels).resize((40 + 3 * (count % 5), 48), Image.Resampling.BICUBIC)
    image.save(folder / f"{count}.jpg", quality=95)


def test_a_result_is_published_as_shown(blocks, execute):
    found = execute(blocks("publishing"))
    assert found["file"].is_file() and found["page"].is_file()
    assert str(found["done"].outcome) == "repeats"


def test_the_toy_is_played_as_shown(blocks, execute, tmp_path):
    (block,) = blocks("toy")
    execute([block.replace("seeds=20", "seeds=2")])
    assert any((tmp_path / "toy").iterdir())


def test_the_first_page_runs_as_shown(execute, repo):
    text = (repo / "README.md").read_text(encoding="utf-8")
    pieces = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    given = (
        "import torch\nimages, others = torch.rand(4, 1, 12, 12), torch.rand(20, 1, 12, 12)\n"
        "extractor = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 16))\n"
        "reps = extractor(images).detach()\n"
    )
    small = "set={'data.size': 16, 'data.per_class': 12})"
    assert len(pieces) == 2 and "rounds=10)" in pieces[1]
    found = execute([given, pieces[0], pieces[1].replace("rounds=10)", f"rounds=2, {small}")])
    assert found["found"].images.shape == found["images"].shape
    assert len(found["result"].frame()) >= 8
