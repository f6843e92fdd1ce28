"""Recorded runs that somebody changed: refused with the file and the check that failed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedre_privacy.core.files import file_sha256
from fedre_privacy.runs.verification import verify

LAST = "uploads/r0003.safetensors"


def flip(path: Path, position: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def pickled(path: Path) -> None:
    torch.save({"upload": torch.ones(3)}, path)


def pickled_and_rehashed(path: Path) -> None:
    pickled(path)
    index = path.parent / "index.json"
    content = json.loads(index.read_text())
    content["files"][path.name] = file_sha256(path)
    index.write_text(json.dumps(content))


def newer(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema": 99}))


def renamed_kind(path: Path) -> None:
    path.write_text(path.read_text().replace('"kind": "entangled"', '"kind": "holograms"'))


DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    (LAST, truncate, "does not match its recorded SHA-256 (expected "),
    (LAST, lambda path: flip(path, -1), "does not match its recorded SHA-256 (expected "),
    (LAST, pickled, "does not match its recorded SHA-256 (expected "),
    (LAST, pickled_and_rehashed, "is a pickle (torch.save) file. Pickles can run code when ope"),
    (LAST, lambda path: path.unlink(), "No file at "),
    ("uploads/index.json", truncate, "is not valid JSON: "),
    ("uploads/index.json", newer, "has schema 99; this version reads schema 1."),
    (
        "uploads/index.json",
        renamed_kind,
        "unknown kind 'holograms'. Known kinds: adapter, change, class-logits",
    ),
    ("uploads/index.json", lambda path: path.unlink(), "No uploads recorded: "),
    ("models/r0003.safetensors", truncate, "is not a readable safetensors file: "),
    ("models/r0003.safetensors", pickled, "is a pickle (torch.save) file. Pickles can run cod"),
    ("private/split.safetensors", truncate, "is not a readable safetensors file: "),
    ("record.json", truncate, "is not valid JSON: "),
    (
        "record.json",
        lambda path: path.write_text("[]"),
        "is not what was written: expected object, got array",
    ),
    (
        "record.json",
        lambda path: path.write_text("{}"),
        "is not what was written: object missing required field status",
    ),
    ("config.yaml", lambda path: path.unlink(), "No settings file at "),
]


@pytest.mark.parametrize(
    ("name", "damage", "text"), DAMAGE, ids=[f"{d[0]}-{d[2][:20]}" for d in DAMAGE]
)
def test_damaged_run(
    cli: Any, copy: Path, fast: list[str], name: str, damage: Callable[[Path], None], text: str
) -> None:
    """The manifest refuses it; where somebody covered it as it is, the reader of the file does."""
    damage(copy / name)
    done = cli.attack(copy, *fast)
    assert done.code == 4, done.err
    assert str(copy / Path(name).parent) in done.err
    assert f"fedre-attack verify {copy}" in done.err or name == "record.json"
    verify(copy, accept=True)
    done = cli.attack(copy, *fast)
    assert done.code == 4, done.err
    assert text in done.err and str(copy / Path(name).parent) in done.err
    assert not (copy / "attacks").exists()


def test_undamaged_copy_is_fine(cli: Any, copy: Path, fast: list[str]) -> None:
    assert cli.attack(copy, *fast).code == 0


def test_models_of_other_settings(cli: Any, copy: Path, fast: list[str]) -> None:
    path = copy / "models" / "r0003.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("weight"))
    save_file({**tensors, name: torch.zeros(2, 2)}, path)
    verify(copy, accept=True)
    done = cli.attack(copy, *fast)
    assert done.code == 4 and "do not fit its config.yaml" in done.err


@pytest.mark.slow
def test_damaged_attack_is_not_read_back(cli: Any, copy: Path, fast: list[str]) -> None:
    assert cli.attack(copy, *fast).code == 0
    (folder,) = (copy / "attacks").iterdir()
    truncate(folder / "recovered.safetensors")
    done = cli.attack(copy, *fast)
    assert done.code == 4 and "recovered.safetensors is not the file that was rec" in done.err
    verify(copy, accept=True)
    done = cli.attack(copy, *fast)
    assert done.code == 4 and "recovered.safetensors is not a readable" in done.err
    assert cli.attack(copy, *fast, "--restart").code == 0


@pytest.mark.slow
def test_data_set_that_changed_since_training(cli: Any, tmp_path: Path, fast: list[str]) -> None:
    path = tmp_path / "own.npz"
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16), np.uint8)
    np.savez(path, x=images, y=np.arange(60) % 3)
    options = ["--dataset", f"npz:{path}", "--clients", "2", "--rounds", "1"]
    options += ["--partition", "iid", "--runs-dir", tmp_path / "runs"]
    trained = cli.train(*options, "--quiet")
    assert trained.code == 0, trained.err
    assert cli.attack(*options, *fast).code == 0
    images[0, 0, 0] ^= 1
    np.savez(path, x=images, y=np.arange(60) % 3)
    for arguments in ([trained.out.strip()], options):
        done = cli.attack(*arguments, *fast, "--target", "prototypes")
        assert done.code == 4
        assert "The data set 'npz' has changed since npz" not in done.err
        assert "The data set 'npz' has changed since fedre-npz-" in done.err
        assert "train again with fedre-train --restart." in done.err
    shutil.move(path, tmp_path / "elsewhere.npz")
    gone = cli.attack(trained.out.strip(), *fast, "--target", "prototypes")
    assert gone.code == 4 and str(path) in gone.err
