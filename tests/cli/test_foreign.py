"""Uploads of another system: written by hand with numpy and safetensors, attacked, refused."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import fedre_privacy as fp
from fedre_privacy.cli import attack as command
from fedre_privacy.core.files import read_tensors

DIM, SHAPE = 12, (1, 8, 8)
MODULE = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12))

def number():
    return 7
"""


def write_uploads(folder: Path, kind: str, tensors: dict[str, np.ndarray], rows: int = 0) -> None:
    """Exactly what docs/artifact_format.md says, and nothing of this package."""
    folder.mkdir(exist_ok=True)
    file = folder / "r0001.safetensors"
    save_file({f"client0/{name}": array for name, array in tensors.items()}, file)
    described = {
        name: {"key": f"client0/{name}", "shape": list(array.shape), "dtype": str(array.dtype),
               "content": "representation"}
        for name, array in tensors.items()
    }  # fmt: skip
    message = {
        "direction": "upload", "client": 0, "round": 1, "file": file.name,
        "artifacts": [{"kind": kind, "tensors": described}],
    }  # fmt: skip
    index = {
        "schema": 1,
        "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest()},
        "messages": [message],
    }
    (folder / "index.json").write_text(json.dumps(index))


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A linear system: images, an extractor's weights, and the representations of six images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine_abc.py").write_text(MODULE)
    rng = np.random.default_rng(0)
    images = rng.random((60, *SHAPE), dtype=np.float32)
    weight = rng.normal(size=(DIM, 64)).astype(np.float32) / 8
    save_file({"1.weight": weight, "1.bias": np.zeros(DIM, np.float32)}, "weights.safetensors")
    reps = images[:6].reshape(6, -1) @ weight.T
    labels = np.arange(6, dtype=np.int64)
    write_uploads(tmp_path / "up", "representations", {"reps": reps, "labels": labels})
    np.savez("truth.npz", images=images[:6])
    np.savez("public.npz", images=images[6:], labels=np.zeros(54, np.int64))
    yield images, reps
    sys.modules.pop("mine_abc", None)


def call(*more: str) -> int:
    given = {"--uploads": "up", "--extractor": "mine_abc:make", "--weights": "weights.safetensors",
             "--image-shape": "1x8x8", "--attack": "pixel"}  # fmt: skip
    extra = list(more)
    for name in list(given):
        if name in extra:
            at = extra.index(name)
            given[name] = extra[at + 1]
            del extra[at : at + 2]
    flat = [part for pair in given.items() if pair[1] for part in pair]
    return command.main([*flat, *extra, "--runs-dir", "out", "--device", "cpu"])


def test_without_truth_there_are_residuals_and_no_score(system, capsys, opened):
    assert call("--set", "attack.steps=400", "--quiet", "--open") == 0
    folder = Path(capsys.readouterr().out.strip())
    assert opened == [(folder / "report.html").resolve()]
    page = (folder / "report.html").read_text()
    assert "NOT SCORED" in page and "PSNR" not in page and "SSIM" not in page
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "complete"
    (share,) = record["measures"]
    assert share["key"] == "explained" and share["value"] > share["floor"]
    assert "The answers explain" in record["verdict"]["because"]
    header, *lines = (folder / "scores.csv").read_text().splitlines()
    assert header.split(",")[:5] == ["target", "client", "label", "residual", "mismatched"]
    rows = np.array([line.split(",") for line in lines], dtype=float)
    assert len(rows) == 6 and rows[:, 3].min() < 1e-3
    assert np.median(rows[:, 3]) < np.median(rows[:, 4])
    # an identical attack is read back, and its page made again where it is lost
    (folder / "report.html").unlink()
    before = (folder / "recovered.safetensors").stat().st_mtime_ns
    assert call("--set", "attack.steps=400", "--quiet") == 0
    assert (folder / "report.html").is_file()
    assert (folder / "recovered.safetensors").stat().st_mtime_ns == before


def test_an_attack_on_them_is_logged(system, capsys):
    pytest.importorskip("tensorboard")
    assert call("--set", "attack.steps=2", "--quiet", "--log", "tensorboard") == 0
    folder = Path(capsys.readouterr().out.strip())
    (file,) = Path("out", "tensorboard").rglob("events.out.*")
    assert file.parent.parent.name == folder.name and b"final/explained" in file.read_bytes()


def test_the_same_uploads_in_memory_are_answered_the_same(system, capsys):
    """One attack path: a folder of another system, and its module and tensor in a script."""
    images, reps = system
    more = ["--truth", "npz:truth.npz", "--aux", "npz:public.npz", "--set", "eval.metrics=[psnr]"]
    assert call(*more, "--set", "attack.steps=20", "--quiet") == 0
    folder = Path(capsys.readouterr().out.strip())
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    module.load_state_dict(read_tensors(Path("weights.safetensors")))
    found = fp.attack_module(
        module, representations=reps, labels=range(6), truth=images[:6], public=images[6:],
        attack={"name": "pixel", "steps": 20}, metrics=["psnr"], device="cpu",
    )  # fmt: skip
    recovered = read_tensors(folder / "recovered.safetensors")
    assert torch.equal(found.images, recovered["images"])
    rows = np.genfromtxt(folder / "scores.csv", delimiter=",", names=True)
    assert np.allclose(found.frame()["psnr"], rows["psnr"])


@pytest.mark.slow
def test_other_uploads_or_images_are_another_attack(system, capsys):
    _, reps = system
    more = ["--set", "attack.steps=2", "--truth", "npz:truth.npz", "--aux", "npz:public.npz"]
    more += ["--set", "eval.metrics=[psnr]"]

    def folders() -> int:
        assert call(*more) == 0
        return len(list(Path("out").glob("foreign-*")))

    assert (folders(), folders()) == (1, 1)
    changed = reps.copy()
    changed[-1, -1] += 1
    labels = np.arange(6, dtype=np.int64)
    write_uploads(Path("up"), "representations", {"reps": changed, "labels": labels})
    assert folders() == 2
    np.savez("truth.npz", images=system[0][1:7])
    assert folders() == 3


def test_with_truth_and_public_images_it_is_scored_beside_floors(system, capsys):
    more = ["--set", "attack.steps=40", "--truth", "npz:truth.npz", "--aux", "npz:public.npz"]
    assert call(*more, "--set", "eval.metrics=[psnr]") == 0
    said = capsys.readouterr().out
    assert "PSNR" in said and "floor" in said
    folder = next(Path("out").glob("foreign-*"))
    assert "NOT SCORED" not in (folder / "report.html").read_text()
    assert json.loads((folder / "record.json").read_text())["measures"]


def test_prototypes_entangled_and_labels(system, capsys):
    _, reps = system
    labels = np.arange(6, dtype=np.int64)
    write_uploads(Path("p"), "prototypes", {"means": reps, "labels": labels})
    mixed = {"rep": reps.mean(0), "encoding": np.full(6, 1 / 6, np.float32)}
    write_uploads(Path("e"), "entangled", mixed)
    for folder in ("p", "e"):
        assert call("--uploads", folder, "--set", "attack.steps=3", "--quiet") == 0
    assert call("--uploads", "p/r0001.safetensors", "--attack", "labels", "--quiet") == 0
    capsys.readouterr()
    assert call("--uploads", "up", "--dry-run") == 0
    assert "6 x 1x8x8 values from 6 x 12 observed" in capsys.readouterr().out


REFUSED = {
    "needed": (["--weights", ""], 2, "goes --extractor with --weights"),
    "uploads": (["--uploads", "nowhere"], 4, "No uploads at nowhere"),
    "weights": (["--weights", "none.safetensors"], 4, "No file at none.safetensors"),
    "format": (["--weights", "mine_abc.py"], 4, "mine_abc.py"),
    "module": (["--extractor", "mine_xyz:make"], 2, "cannot be imported"),
    "function": (["--extractor", "mine_abc:absent"], 2, "no function 'absent'"),
    "return": (["--extractor", "mine_abc:number"], 2, "returns a int, not an nn.Module"),
    "spelling": (["--extractor", "mine_abc"], 2, "package:function"),
    "shape": (["--image-shape", "1x9x9"], 3, "fails on images 1x9x9"),
    "shape text": (["--image-shape", "8,8"], 2, "CxHxW"),
    "attack": (["--attack", "dlg"], 3, "reads nothing of up"),
    "membership": (["--attack", "membership"], 3, "needs a recorded run"),
    "needs aux": (["--attack", "linear"], 3, "needs AUX-DATA"),
    "no floors": (["--truth", "npz:truth.npz"], 4, "--truth needs --aux"),
    "aux": (["--aux", "npz:gone.npz"], 4, "no file at gone.npz"),
    "round": (["--round", "5"], 4, "Use --round 1"),
    "training": (["--protocol", "fedre"], 2, "would train a run"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_missing_or_wrong_is_refused_before_any_step(system, capsys, case):
    more, code, text = REFUSED[case]
    assert call(*more) == code
    assert text in capsys.readouterr().err
    assert not Path("out").exists()


def test_widths_and_kinds_and_ranges(system, capsys):
    wide = {"reps": np.zeros((2, 5), np.float32), "labels": np.zeros(2, np.int64)}
    write_uploads(Path("w"), "representations", wide)
    assert call("--uploads", "w") == 3
    said = capsys.readouterr().err
    assert "have 5 values" in said and "returns 12" in said
    write_uploads(Path("k"), "secret", wide)
    assert call("--uploads", "k") == 4
    assert "unknown kind 'secret'" in capsys.readouterr().err
    np.savez("odd.npz", images=np.full((4, *SHAPE), 3.0, np.float32))
    assert call("--aux", "npz:odd.npz") == 3
    assert "range from 3 to 3" in capsys.readouterr().err
    Path("pickled").mkdir()
    Path("pickled/r1.safetensors").write_bytes(b"\x80\x04K\x01.")
    assert call("--uploads", "pickled/r1.safetensors") == 4


def test_options_of_other_systems_go_with_uploads(system, capsys):
    assert command.main(["--extractor", "mine_abc:make"]) == 2
    assert "goes with --uploads" in capsys.readouterr().err
