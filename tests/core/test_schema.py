"""What a JSON, YAML or npz file may hold, and what is refused with its place."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import pytest
import yaml

from fedre_privacy.core import files
from fedre_privacy.core.config import load_yaml, parse_assignments
from fedre_privacy.core.errors import ConfigError, DamagedInputError, MissingInputError
from fedre_privacy.core.typed_yaml import Count, Word, check, parse_json, parse_yaml


class Inner(TypedDict):
    name: Word
    counts: list[Count]


class Outer(TypedDict):
    inner: list[Inner]
    note: NotRequired[Word]


GOOD: Outer = {"inner": [{"name": "a", "counts": [0, 1]}]}


def test_what_is_as_declared_is_returned(tmp_path):
    files.write_json(tmp_path / "x.json", {**GOOD, "later": 1})
    assert files.read_json(tmp_path / "x.json", Outer) == {**GOOD, "later": 1}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "expected object"),
        ({"inner": [{"name": "a"}]}, r"at \$.inner\[0\]: object missing required field counts"),
        ({"inner": [{"name": 5, "counts": []}]}, r"at \$.inner\[0\].name: expected str, got int"),
        ({"inner": [{"name": "a", "counts": [-1]}]}, r"at \$.inner\[0\].counts\[0\]: .* >= 0"),
        ({"inner": [{"name": "a", "counts": [True]}]}, "expected int, got bool"),
        ({"inner": [{"name": "a", "counts": [10**30]}]}, r"counts\[0\]"),
        ({"inner": [{"name": "a" * 201, "counts": []}]}, "length <= 200"),
        ({"inner": None}, "expected array, got null"),
    ],
)
def test_what_is_not_is_refused_with_its_place(value, words):
    with pytest.raises(DamagedInputError, match=words) as caught:
        check(value, Outer, Path("x.json"))
    assert str(caught.value).startswith("x.json is not what was written")


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, "NaN", "-Infinity", "{'a': 1}", "\0"],
)
def test_json_beyond_bounds(tmp_path, text):
    with pytest.raises(ValueError):
        parse_json(text)
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DamagedInputError, match="x.json is not valid JSON"):
        files.read_json(tmp_path / "x.json", dict)


@pytest.mark.parametrize(
    "text",
    [r'"\ud800"', r'{"a": "\uD800"}', r'{"\udfff": 1}', r'[["x", "\ud83d"]]', r'"\ude00\ud83d"'],
)
@pytest.mark.parametrize("kind", [dict, dict[str, int], list[str], Outer])
def test_half_letters_are_damage(tmp_path, text, kind):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DamagedInputError, match="half a letter"):
        files.read_json(tmp_path / "x.json", kind)


def test_whole_letters_beyond_the_first_plane_stay():
    assert parse_json(r'{"\ud83d\ude00": "\\ud800"}') == {"\U0001f600": r"\ud800"}


def bomb() -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- " * 5000, "nested too deeply"),
        ("[" * 100_000, "nested too deeply|valid YAML"),
        (bomb(), "too many values"),
        ("a: &a [*a]", "too many values"),
        ("a: 2020-01-01", "a value of kind 'timestamp'"),
        ("!!python/object/apply:os.getcwd []", "kind 'os.getcwd'"),
        ("? [1, 2]\n: x", "a key that is no word"),
        ("a: 1\na: 2", "a key that is given twice"),
        (r'a: "\ud800"', "half a letter"),
        ("a: 0x" + "f" * 9000, "a number of 9002 digits"),
        ("a: " + "9" * 9000, "a number of 9000 digits"),
    ],
)
def test_yaml_beyond_bounds(tmp_path, text, words):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_yaml(tmp_path / "x.yaml")


def test_yaml_that_is_usual_stays():
    text = "base: &b {x: 1e3, y: [a, null]}\nmore: {<<: *b, z: 0x1f}\n"
    assert parse_yaml(text)[0] == yaml.safe_load(text)
    assert parse_assignments(["a.b=[1, 2]", "c="]) == {"a": {"b": [1, 2]}, "c": None}
    with pytest.raises(ConfigError, match="not a YAML value"):
        parse_assignments(["a=" + "9" * 6000])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingInputError):
        files.read_text(tmp_path, 10)
    (tmp_path / "long").write_bytes(b"x" * 11)
    with pytest.raises(DamagedInputError, match="more than 10 bytes"):
        files.read_text(tmp_path / "long", 10)
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(DamagedInputError, match="no UTF-8"):
        files.read_text(tmp_path / "bytes", 10)


def npy(shape: str, content: bytes, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + content


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy("(1000000000000,)", b""), "no plain array of its size"),
        (npy("(-1,)", b""), "no plain array of its size"),
        (npy("(1,)", bytes(8), "|O"), "no plain array of its size"),
        (npy("(75000000,)", bytes(300_000_000)), "swell to 300,000,128"),
        (b"\x80\x04]\x94.", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_npz_that_is_not_what_it_declares(tmp_path, member, words):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", member)
    with pytest.raises(DamagedInputError, match=words):
        files.read_npz(tmp_path / "x.npz")


def test_npz_that_is_usual(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yy"]), "c": np.zeros((0, 4))}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **arrays)
        found = files.read_npz(tmp_path / "x.npz")
        assert set(found) == set(arrays)
        assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(arrays["a"]))
    (tmp_path / "y.npz").write_bytes(buffer.getvalue())
    with pytest.raises(DamagedInputError, match="cannot be read as a .npz file"):
        files.read_npz(tmp_path / "y.npz")


def test_a_pipe_has_no_hash(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DamagedInputError, match="pipe is no file"):
        files.file_sha256(tmp_path / "pipe")
