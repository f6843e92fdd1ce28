"""A kill leaves no half file, and nothing that could run code is ever opened."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
from pathlib import Path

import pytest
import torch
import yaml

from fedre_privacy.core import files
from fedre_privacy.core.errors import DamagedInputError, MissingInputError


class Boom(Exception):
    pass


@pytest.mark.parametrize("existing", [True, False])
def test_a_failing_writer_changes_nothing(tmp_path, existing):
    path = tmp_path / "deep" / "file.txt"
    if existing:
        files.write_text(path, "old")

    def half_way(temporary: Path) -> None:
        assert temporary.parent == path.parent  # same file system, or the rename is not atomic
        temporary.write_text("half")
        raise Boom

    with pytest.raises(Boom):
        files.write_with(path, half_way)
    assert [p.name for p in path.parent.iterdir()] == (["file.txt"] if existing else [])
    if existing:
        assert path.read_text() == "old"


def test_the_old_file_stands_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file.txt"
    files.write_text(path, "old")
    seen = []

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        seen.append(path.read_text())

    with path.open() as reader:  # who opened the old file goes on reading the old file
        files.write_with(path, write)
        assert reader.read() == "old"
    assert seen == ["old"] and path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_text_is_utf8(tmp_path):
    files.write_text(tmp_path / "a", "Ä → ε")
    assert (tmp_path / "a").read_bytes() == "Ä → ε".encode()


# --- JSON, YAML --------------------------------------------------------------------------------


def test_json_round_trip_and_refusals(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"x": [1, 2.5, None]})
    assert files.read_json(path, dict) == {"x": [1, 2.5, None]}
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(path, {"x": float("nan")})
    assert files.read_json(path, dict) == {"x": [1, 2.5, None]}
    path.write_text('{"x": [1, 2')
    with pytest.raises(DamagedInputError, match=r"a\.json"):
        files.read_json(path, dict)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DamagedInputError, match=r"a\.json"):
        files.read_json(path, dict)
    with pytest.raises(MissingInputError, match="absent"):
        files.read_json(tmp_path / "absent.json", dict)


def test_yaml_keeps_the_order_of_keys(tmp_path):
    path = tmp_path / "a.yaml"
    files.write_yaml(path, {"z": 1, "a": {"k": [1, 2]}}, header="# made by us\n")
    assert path.read_text().startswith("# made by us\nz: 1\na:\n")
    assert yaml.safe_load(path.read_text()) == {"z": 1, "a": {"k": [1, 2]}}


# --- tensors -----------------------------------------------------------------------------------


def test_the_same_metadata_give_the_same_bytes(tmp_path):
    told = {name: f'"{name}" \n ä' for name in ("one", "two", "three", "four", "five")}
    given = {"b": torch.ones(2), "a": torch.zeros(3, dtype=torch.int64)}
    shas = {
        files.write_tensors(tmp_path / "x", given, metadata=dict(order))
        for order in itertools.permutations(told.items())
    }
    assert len(shas) == 1 and files.read_metadata(tmp_path / "x") == told
    assert torch.equal(files.read_tensors(tmp_path / "x")["b"], given["b"])


def test_tensors_round_trip(tmp_path):
    path = tmp_path / "a.safetensors"
    base = torch.arange(12.0).reshape(3, 4)
    given = {
        "turned": base.t(),
        "ints": torch.tensor([1, -2]),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.zeros(0, 5),
        "grad": torch.ones(2, requires_grad=True),
    }
    sha = files.write_tensors(path, given, metadata={"who": "me"})
    assert sha == hashlib.sha256(path.read_bytes()).hexdigest() == files.file_sha256(path)
    found = files.read_tensors(path, sha256=sha)
    assert set(found) == set(given)
    for name, tensor in given.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype
    assert files.read_metadata(path) == {"who": "me"}


def test_every_header_length_is_readable(tmp_path):
    # The first byte is part of a length and may equal the pickle marker 0x80.
    path = tmp_path / "a.safetensors"
    first_bytes = set()
    for length in range(1, 300, 4):
        files.write_tensors(path, {"x" * length: torch.ones(1)}, metadata={"k": "v"})
        first_bytes.add(path.read_bytes()[0])
        assert files.read_tensors(path)["x" * length].item() == 1
        assert files.read_metadata(path) == {"k": "v"}
    assert 0x80 in first_bytes


class Trap:
    """Unpickling one creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["torch.save", "torch.save (old format)", "pickle"])
def test_pickles_are_named_and_never_opened(tmp_path, kind):
    path, sprung = tmp_path / "a.safetensors", tmp_path / "sprung"
    bait = {"x": torch.ones(2), "trap": Trap(sprung)}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(bait))
    else:
        torch.save(bait, path, _use_new_zipfile_serialization=kind == "torch.save")
    for read in (files.read_tensors, files.read_metadata):
        with pytest.raises(DamagedInputError, match="is a pickle") as caught:
            read(path)
        assert "safetensors.torch.save_file" in str(caught.value)
    assert not sprung.exists()
    with path.open("rb") as handle:
        if kind == "pickle":
            pickle.load(handle)
            assert sprung.exists()  # the trap works


@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1])
def test_a_truncated_file_is_damaged(tmp_path, keep):
    path = tmp_path / "a.safetensors"
    files.write_tensors(path, {"x": torch.ones(100)})
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    with pytest.raises(DamagedInputError, match="not a readable safetensors"):
        files.read_tensors(path)
    with pytest.raises(DamagedInputError, match="not a readable safetensors"):
        files.read_metadata(path)


def test_an_altered_file_does_not_match_its_hash(tmp_path):
    path = tmp_path / "a.safetensors"
    sha = files.write_tensors(path, {"x": torch.ones(100)})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert files.read_tensors(path)["x"].shape == (100,)  # readable, and wrong
    with pytest.raises(DamagedInputError, match="SHA-256"):
        files.read_tensors(path, sha256=sha)


def test_a_missing_file(tmp_path):
    for read in (files.read_tensors, files.read_metadata):
        with pytest.raises(MissingInputError, match="absent"):
            read(tmp_path / "absent.safetensors")


# --- hashes ------------------------------------------------------------------------------------


def test_tensor_hash_reads_the_bytes_in_order():
    a, b = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 2])
    expected = hashlib.sha256(a.numpy().tobytes() + b.numpy().tobytes()).hexdigest()
    assert files.tensor_sha256(a, b) == expected
    assert files.tensor_sha256(b, a) != expected
    assert files.tensor_sha256(a.t()) == hashlib.sha256(a.t().contiguous().numpy()).hexdigest()


def test_settings_hash_ignores_the_order_of_keys_only():
    assert files.settings_hash({"a": 1, "b": 2}) == files.settings_hash({"b": 2, "a": 1})
    assert files.settings_hash({"a": 1}) != files.settings_hash({"a": 2})
    text = json.dumps({"a": 1}, separators=(",", ":"))
    assert files.settings_hash({"a": 1}) == hashlib.sha256(text.encode()).hexdigest()[:8]
