"""Data sets of the package `datasets`: its own folders read as they are, and one clear error."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedre_privacy.cli import train
from fedre_privacy.core.errors import (
    DamagedInputError,
    FedreError,
    IncompatibleError,
    MissingExtraError,
    MissingInputError,
)
from fedre_privacy.data.base import datasets as registry

INSTALLED = importlib.util.find_spec("datasets") is not None
if INSTALLED:
    import datasets as hf
    from pyarrow import parquet

needed = pytest.mark.skipif(not INSTALLED, reason="datasets is not installed: extra 'hf'")
CLASSES = ["ant", "bee", "cat"]


def load(path: object, **settings: Any):
    return registry.get("hf")(path=str(path), **settings).load()


def pixels(count: int, *, seed: int = 0, side: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def part(count: int, *, seed: int = 0, labels: list[int] | None = None, **columns: Any):
    """A part with the columns img and label, and more."""
    found = {
        "img": [Image.fromarray(one) for one in pixels(count, seed=seed)],
        "label": labels or [number % 3 for number in range(count)],
        **columns,
    }
    features = hf.Features({"img": hf.Image(), "label": hf.ClassLabel(names=CLASSES)})
    for name, values in columns.items():
        features[name] = hf.Value("string" if isinstance(values[0], str) else "int64")
    return hf.Dataset.from_dict(found, features=features)


@needed
def test_images_and_labels_are_those_that_were_saved(tmp_path):
    hf.DatasetDict({"test": part(6, seed=1), "train": part(12)}).save_to_disk(tmp_path / "d")
    data = load(tmp_path / "d")
    assert data.classes == tuple(CLASSES) and data.num_train == 12 and data.notes == ()
    wanted = np.concatenate([pixels(12), pixels(6, seed=1)]).transpose(0, 3, 1, 2)
    assert torch.equal(data.images, torch.from_numpy(wanted.copy()))
    assert data.labels.tolist() == [n % 3 for n in range(12)] + [n % 3 for n in range(6)]
    few = load(tmp_path / "d", per_class=2)
    assert few.num_train == 6 and few.labels.tolist() == [0, 1, 2] * 4
    assert torch.equal(few.images[6:], data.images[12:])
    assert registry.get("hf")(path=str(tmp_path / "d")).sources() == (tmp_path / "d",)


@needed
def test_one_part_resized_and_validation_in_place_of_test(tmp_path):
    part(9).save_to_disk(tmp_path / "one")
    data = load(tmp_path / "one", size=4)
    assert data.num_train == len(data) == 9 and data.image_shape == (3, 4, 4)
    both = {"validation": part(3), "train": part(6)}
    hf.DatasetDict(both).save_to_disk(tmp_path / "two")
    assert load(tmp_path / "two").num_train == 6 and len(load(tmp_path / "two")) == 9
    assert len(load(tmp_path / "two", train="validation", test="train")) == 9
    assert load(tmp_path / "two", train="validation", test="train").num_train == 3


@needed
def test_rows_in_another_order_and_without_a_label(tmp_path):
    whole = part(9, labels=[0, 1, 2, -1, 0, 1, 2, -1, 0]).select([8, 3, 1, 2, 0])
    whole.save_to_disk(tmp_path / "d")
    data = load(tmp_path / "d")
    assert data.labels.tolist() == [0, 1, 2, 0]
    wanted = pixels(9)[[8, 1, 2, 0]].transpose(0, 3, 1, 2)
    assert torch.equal(data.images, torch.from_numpy(wanted.copy()))
    assert data.notes == ("Left out, having no label: 1 image.",)


@needed
def test_labels_that_are_words_or_plain_numbers(tmp_path):
    words = part(4, kind=["b", "a", "b", "c"])
    words.save_to_disk(tmp_path / "words")
    data = load(tmp_path / "words", label="kind")
    assert data.classes == ("a", "b", "c") and data.labels.tolist() == [1, 0, 1, 2]
    plain = part(4).cast_column("label", hf.Value("int32"))
    plain.save_to_disk(tmp_path / "plain")
    data = load(tmp_path / "plain")
    assert data.classes == ("0", "1", "2") and data.labels.tolist() == [0, 1, 2, 0]


@needed
def test_a_folder_of_parquet_files_and_one_of_images(tmp_path, monkeypatch):
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "parquet").mkdir()
    part(6).to_parquet(str(tmp_path / "parquet" / "train-00000-of-00001.parquet"))
    data = load(tmp_path / "parquet")
    wanted = torch.from_numpy(pixels(6).transpose(0, 3, 1, 2).copy())
    assert torch.equal(data.images, wanted) and data.classes == tuple(CLASSES)
    for number, one in enumerate(pixels(6)):
        folder = tmp_path / "images" / "train" / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(folder / f"{number}.png")
    data = load(tmp_path / "images")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(data.images, wanted[[0, 3, 1, 4, 2, 5]])


@needed
@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"image": "label"}, IncompatibleError, "Needed: images"),
        ({"image": "photo"}, IncompatibleError, "no such column for data.image"),
        ({"label": "score"}, IncompatibleError, "no such column for data.label"),
        ({"train": "all"}, IncompatibleError, "no part 'all'; its parts are train, test"),
        ({"test": "dev"}, IncompatibleError, "no part 'dev'"),
        ({"test": "train"}, FedreError, "Name two parts"),
    ],
)
def test_what_does_not_fit_is_said_with_what_there_is(tmp_path, settings, error, said):
    hf.DatasetDict({"train": part(3), "test": part(3)}).save_to_disk(tmp_path / "d")
    with pytest.raises(error, match=said):
        load(tmp_path / "d", **settings)


@needed
def test_several_columns_that_fit_are_listed(tmp_path):
    two = part(3, other=[0, 1, 2]).cast_column("other", hf.ClassLabel(names=["x", "y", "z"]))
    two.save_to_disk(tmp_path / "d")
    with pytest.raises(IncompatibleError, match=r"several columns .* label .*, other ") as caught:
        load(tmp_path / "d")
    assert "--set data.label=NAME" in str(caught.value)
    assert load(tmp_path / "d", label="other").classes == ("x", "y", "z")


@needed
def test_a_damaged_folder_and_a_damaged_image(tmp_path):
    part(3).save_to_disk(tmp_path / "d")
    (tmp_path / "d" / "data-00000-of-00001.arrow").write_bytes(b"no arrow")
    with pytest.raises(DamagedInputError, match="cannot be read"):
        load(tmp_path / "d")
    stored = [{"bytes": b"no image", "path": None}]
    broken = hf.Dataset.from_dict({"img": stored, "label": [0]})
    broken.cast_column("img", hf.Image()).save_to_disk(tmp_path / "broken")
    with pytest.raises(DamagedInputError, match="train, row 0 in .* cannot be read as an image"):
        load(tmp_path / "broken")


@needed
def test_no_file_outside_its_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    secret = tmp_path / "secret.png"
    Image.fromarray(pixels(1)[0]).save(secret)
    stored = [{"bytes": None, "path": str(secret)}]
    linked = hf.Dataset.from_dict({"img": stored, "label": [0]})
    (tmp_path / "d").mkdir()  # `datasets` itself would save the image in place of its path
    table = linked.cast_column("img", hf.Image()).data.table
    parquet.write_table(table, tmp_path / "d" / "train.parquet")
    with pytest.raises(DamagedInputError, match="not in its own folder"):
        load(tmp_path / "d")


@needed
def test_without_a_network_there_is_one_error(tmp_path, monkeypatch, capsys):
    def offline(*given: Any, **more: Any) -> Any:
        raise ConnectionError("Couldn't reach 'some/thing' on the Hub")

    monkeypatch.setattr(hf, "load_dataset", offline)
    monkeypatch.chdir(tmp_path)
    assert train.main(["--dataset", "hf:some/thing", "--runs-dir", "runs"]) == 4
    said = capsys.readouterr()
    assert "could not be had from the Hub or its cache" in said.err and said.out == ""
    assert "save_to_disk('DIR'); then --dataset hf:DIR" in said.err
    assert not Path("runs").exists()


def test_without_the_package_there_is_one_error(tmp_path, monkeypatch, capsys):
    real = importlib.util.find_spec  # modules that are imported meanwhile keep what they find
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "datasets" else real(name)
    )
    monkeypatch.chdir(tmp_path)
    assert train.main(["--dataset", "hf:some/thing", "--runs-dir", "runs"]) == 6
    said = capsys.readouterr().err
    assert "Data set 'hf' needs the package datasets, which is not installed." in said
    assert "pip install 'fedre-privacy[hf]'" in said
    with pytest.raises(MissingExtraError):
        load("some/thing")
    with pytest.raises(MissingInputError, match="none was given"):
        registry.get("hf")().load()


def test_images_from_the_hub_are_in_the_packages_cache(tmp_path, monkeypatch):
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    named = registry.get("hf")(path="some/thing")
    assert named.sources() == ()
    (tmp_path / "datasets").mkdir()
    assert named.sources() == (tmp_path / "datasets",)


@needed
def test_a_run_on_it_is_read_back_without_the_package(tmp_path, monkeypatch, capsys):
    hf.DatasetDict({"train": part(36), "test": part(18)}).save_to_disk(tmp_path / "d")
    words = ["--dataset", f"hf:{tmp_path / 'd'}", "--clients", "2", "--rounds", "1", "--quiet"]
    words += ["--partition", "iid", "--set", "data.size=16", "--runs-dir", str(tmp_path / "runs")]
    assert train.main(words) == 0
    real = importlib.util.find_spec  # modules that are imported meanwhile keep what they find
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "datasets" else real(name)
    )
    assert train.main(words) == 0
    one, again = capsys.readouterr().out.splitlines()
    assert one == again
