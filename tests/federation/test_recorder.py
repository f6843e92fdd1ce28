"""The record on disk: read back as written, refused when it is not what it says."""

import json

import pytest
import torch
from safetensors.torch import save_file

from fedre_privacy.core import files
from fedre_privacy.core.artifacts import EntangledRep, HeadState, Prototypes, Representations
from fedre_privacy.core.errors import (
    DamagedInputError,
    IncompatibleError,
    MissingInputError,
    StorageError,
)
from fedre_privacy.core.types import Broadcast, Upload
from fedre_privacy.federation.recorder import Recorder, read_messages, rounds_recorded


def _messages(round):
    """One upload of every kind that carries rows, one with nothing, and a broadcast."""
    rng = torch.Generator().manual_seed(round)

    def random(*shape):
        return torch.randn(*shape, generator=rng)

    uploads = [
        Upload(0, round, (Prototypes(random(2, 3), torch.tensor([4, 7])),)),
        Upload(2, round, (Representations(random(3, 3), torch.tensor([1, 1, 0])),)),
        Upload(5, round, (EntangledRep(random(3), random(4).softmax(0)), _head(random))),
        Upload(6, round, ()),
    ]
    return uploads, Broadcast(round, (0, 2, 5), (_head(random),))


def _head(random):
    return HeadState({"weight": random(4, 3), "bias": random(4)})


def _assert_same_artifacts(found, written):
    assert [type(a) for a in found] == [type(a) for a in written]
    for one, other in zip(found, written, strict=True):
        assert one.tensors().keys() == other.tensors().keys()
        for name, tensor in one.tensors().items():
            assert tensor.dtype == other.tensors()[name].dtype
            assert torch.equal(tensor, other.tensors()[name])


@pytest.fixture
def folder(tmp_path):
    recorder = Recorder(tmp_path / "uploads")
    for round in (1, 2, 3):
        uploads, broadcast = _messages(round)
        recorder.write(round, uploads, [broadcast])
    recorder.write(4, [], [_messages(4)[1]])
    recorder.save()
    return tmp_path / "uploads"


def test_what_was_written_is_read(folder):
    uploads, broadcasts = read_messages(folder)
    assert [(u.client, u.round) for u in uploads] == [
        (k, r) for r in (1, 2, 3) for k in (0, 2, 5, 6)
    ]
    assert [(b.round, b.recipients) for b in broadcasts] == [(r, (0, 2, 5)) for r in (1, 2, 3, 4)]
    written = [upload for r in (1, 2, 3) for upload in _messages(r)[0]]
    for found, upload in zip(uploads, written, strict=True):
        _assert_same_artifacts(found.artifacts, upload.artifacts)
        assert not found.counterfactual
    for found in broadcasts:
        _assert_same_artifacts(found.artifacts, _messages(found.round)[1].artifacts)


def test_rounds_can_be_read_alone(folder):
    assert rounds_recorded(folder) == [1, 2, 3]  # the last broadcast alone is no round
    (folder / "r0001.safetensors").unlink()
    uploads, broadcasts = read_messages(folder, [2, 4])
    assert {u.round for u in uploads} == {2} and {b.round for b in broadcasts} == {2, 4}


def test_the_index_describes_every_tensor(folder):
    index = json.loads((folder / "index.json").read_text())
    assert index["schema"] == 1 and len(index["files"]) == 4
    (part,) = next(m for m in index["messages"] if m.get("client") == 0)["artifacts"]
    assert part == {
        "kind": "prototypes",
        "tensors": {
            "means": {
                "key": "upload/client0/0/means",
                "shape": [2, 3],
                "dtype": "float32",
                "content": "prototype",
            },
            "labels": {
                "key": "upload/client0/0/labels",
                "shape": [2],
                "dtype": "int64",
                "content": "label",
            },
        },
    }


def test_resuming_forgets_later_rounds(folder):
    recorder = Recorder(folder)
    recorder.resume(1)
    uploads, broadcast = _messages(9)
    recorder.write(2, [Upload(u.client, 2, u.artifacts) for u in uploads], [])
    recorder.save()
    assert rounds_recorded(folder) == [1, 2]
    found, broadcasts = read_messages(folder)
    _assert_same_artifacts(found[0].artifacts, _messages(1)[0][0].artifacts)
    _assert_same_artifacts(found[4].artifacts, uploads[0].artifacts)
    assert [b.round for b in broadcasts] == [1]


def _edit(folder, change):
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def _refusal(folder, kind=DamagedInputError):
    with pytest.raises(kind) as refused:
        read_messages(folder)
    return str(refused.value)


def test_a_newer_schema_is_refused_whatever_else_it_holds(folder):
    _edit(folder, lambda index: index.update(schema=2))
    text = _refusal(folder)
    assert "schema 2" in text and "reads schema 1" in text and "Upgrade" in text
    _edit(folder, lambda index: index.pop("messages"))
    assert "schema 2" in _refusal(folder)


def test_an_altered_file_is_refused(folder):
    path = folder / "r0002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "r0002.safetensors" in (text := _refusal(folder)) and "SHA-256" in text
    path.write_bytes(data[:-10])
    assert "SHA-256" in _refusal(folder)
    assert len(read_messages(folder, [1, 3])[0]) == 8  # the other rounds still serve


def test_an_unknown_kind_is_refused(folder):
    _edit(folder, lambda index: index["messages"][1]["artifacts"][0].update(kind="secret"))
    assert "unknown kind 'secret'" in (text := _refusal(folder))
    assert "entangled" in text and "prototypes" in text


def test_a_kind_of_an_earlier_version_is_refused_with_the_reason(folder):
    _edit(folder, lambda index: index["messages"][1]["artifacts"][0].update(kind="low-rank"))
    assert "for a model and for its change alike" in (text := _refusal(folder))
    assert text.count("\n") <= 1 and "--restart" in text


def test_absent_files_are_named(folder, tmp_path):
    (folder / "r0003.safetensors").unlink()
    assert "r0003.safetensors" in _refusal(folder, MissingInputError)
    assert "No uploads recorded" in _refusal(tmp_path / "elsewhere", MissingInputError)
    with pytest.raises(MissingInputError):
        rounds_recorded(tmp_path / "elsewhere")


def _drop(*keys):
    def change(index):
        for message in index["messages"]:
            for key in keys:
                message.pop(key, None)

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda index: index.pop("files"), "schema, files and messages"),
        (_drop("round"), "round"),
        (_drop("client"), "client"),
        (_drop("recipients"), "recipients"),
        (lambda index: index["messages"][0].update(direction="up"), "direction"),
        (lambda index: index["messages"][1]["artifacts"][0]["tensors"].pop("labels"), "labels"),
        (
            lambda index: index["messages"][1]["artifacts"][0]["tensors"]["means"].update(key="x"),
            "'x'",
        ),
    ],
)
def test_an_index_that_does_not_fit_is_refused(folder, change, named):
    _edit(folder, change)
    assert named in _refusal(folder)


def test_pickles_and_broken_json_are_refused(folder):
    torch.save({"x": torch.zeros(1)}, folder / "r0001.safetensors")
    assert "pickle" in _refusal(folder)
    (folder / "index.json").write_text('{"schema": 1,')
    assert "not valid JSON" in _refusal(folder)


def test_another_systems_record_is_read(tmp_path):
    """Own keys, two rounds in one file, no hash: as the format document allows."""
    tensors = {"a": torch.ones(2, 3), "b": torch.tensor([0, 1]), "c": torch.zeros(1, 3)}
    save_file({**tensors, "d": torch.tensor([2])}, tmp_path / "all.safetensors")

    def message(round, means, labels):
        parts = {"means": {"key": means}, "labels": {"key": labels}}
        artifact = {"kind": "prototypes", "tensors": parts}
        return {
            "direction": "upload",
            "client": 3,
            "round": round,
            "file": "all.safetensors",
            "artifacts": [artifact],
        }

    index = {"schema": 1, "files": {}, "messages": [message(1, "a", "b"), message(2, "c", "d")]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    first, second = read_messages(tmp_path)[0]
    assert torch.equal(first.artifacts[0].means, tensors["a"])
    assert second.round == 2 and second.artifacts[0].labels.tolist() == [2]


def test_files_written_behind_the_rounds_are_the_same(folder, tmp_path):
    behind = Recorder(tmp_path / "behind", behind=2)
    for round in (1, 2, 3):
        uploads, broadcast = _messages(round)
        behind.write(round, uploads, [broadcast])
    behind.write(4, [], [_messages(4)[1]])
    behind.save()
    for path in sorted(folder.iterdir()):
        assert path.read_bytes() == (tmp_path / "behind" / path.name).read_bytes()


def test_a_round_can_be_written_again_behind_itself(tmp_path):
    behind = Recorder(tmp_path / "behind", behind=2)
    for _ in range(2):
        uploads, broadcast = _messages(1)
        behind.write(1, uploads, [broadcast])
    behind.save()
    assert rounds_recorded(tmp_path / "behind") == [1]
    assert len(read_messages(tmp_path / "behind")[0]) == 4


def test_what_fails_behind_a_round_is_raised(tmp_path, monkeypatch):
    def full(*given):
        raise StorageError("The disk is full.")

    behind = Recorder(tmp_path / "behind", behind=1)
    monkeypatch.setattr(files, "write_tensors", full)
    uploads, broadcast = _messages(1)
    behind.write(1, uploads, [broadcast])
    with pytest.raises(StorageError, match="full"):
        behind.write(2, uploads, [broadcast])


def test_an_upload_that_is_changed_while_it_is_written_is_refused(tmp_path, monkeypatch):
    def slow(path, tensors):
        next(iter(tensors.values())).add_(1)
        return "hash"

    behind = Recorder(tmp_path / "behind", behind=1)
    monkeypatch.setattr(files, "write_tensors", slow)
    uploads, broadcast = _messages(1)
    behind.write(1, uploads, [broadcast])
    with pytest.raises(IncompatibleError, match="changed in place"):
        behind.save()
