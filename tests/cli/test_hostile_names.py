"""Names of classes that attack a terminal, a page, a figure or a spreadsheet: all are harmless."""

import csv

import numpy as np
import pytest

NAMES = [
    "$x^{2$", "$\\frac{", "=HYPERLINK(1)", "+1+1", "<script>alert(1)</script>", "a\x1b[2Jb",
    "\u202egnp.exe", "-1+1", "@SUM(1)", "_hidden",
]  # fmt: skip


@pytest.mark.slow
def test_they_pass_through_everything(cli, tmp_path, real_figures):
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 10
    images = rng.integers(0, 256, (120, 16, 16, 1), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=labels, classes=np.array(NAMES))
    train = [
        "--dataset", f"npz:{tmp_path / 'data.npz'}", "--clients", "2", "--rounds", "1",
        "--partition", "iid", "--set", "model.dim=8", "--runs-dir", tmp_path / "runs",
    ]  # fmt: skip
    done = cli.train("--protocol", "fedproto", *train)
    assert done.code == 0, done.err
    (run,) = (tmp_path / "runs").glob("fedproto-*")
    assert {path.name for path in run.glob("*.png")} >= {"accuracy.png", "partition.png"}
    for target in ("labels", "prototypes"):
        attack = ["--attack", "pixel", "--set", "attack.steps=1"] if target == "prototypes" else []
        done = cli.attack(run, "--target", target, "--targets", "3", *attack)
        assert done.code == 0, done.err
        assert not set("\x1b\u202e") & set(done.out + done.err)
    pages = list(run.glob("attacks/*/report.html"))
    assert len(pages) == 2
    for page in pages:
        text = page.read_text()
        assert not set("\x1b\u202e") & set(text) and "<script>alert" not in text
    tables = [*run.glob("*.csv"), *run.glob("attacks/*/*.csv")]
    assert len(tables) >= 4
    for table in tables:
        with table.open(newline="") as handle:
            cells = [cell for row in csv.reader(handle) for cell in row]
        assert not [cell for cell in cells if cell in NAMES[2:4] + NAMES[7:9]], table
        assert not set("\x1b\u202e") & set("".join(cells))
