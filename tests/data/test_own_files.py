"""Data sets that the user brings: npz, imagefolder, tinyimagenet. Folders as people keep them:
`test_folders`."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedre_privacy.core.errors import DamagedInputError, IncompatibleError, MissingInputError
from fedre_privacy.data.imagefolder import ImageFolder
from fedre_privacy.data.npz import Npz
from fedre_privacy.data.tinyimagenet import TinyImageNet

Writer = Callable[[Mapping[str, bytes]], Path]


def png(value: int, *, size: tuple[int, int] = (4, 4), mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, value if mode != "RGB" else (value, 0, 255 - value)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(params=["folder", "zip", "zip with a top folder"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Writer:
    """Write files to a folder or to a .zip and return its path."""

    def to_folder(files: Mapping[str, bytes]) -> Path:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
        return tmp_path

    def to_zip(files: Mapping[str, bytes]) -> Path:
        top = "top/" if "top" in request.param else ""
        with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(top + name, content)
        return tmp_path / "images.zip"

    return to_folder if request.param == "folder" else to_zip


# --- npz -----------------------------------------------------------------------------------------

RANDOM = np.random.RandomState(0)
PIXELS = RANDOM.randint(0, 256, (6, 5, 5, 3)).astype(np.uint8)


def save(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path / "data.npz", **arrays)
    return str(path / "data.npz")


@pytest.mark.parametrize("keys", [("x_train", "y_train"), ("x", "y"), ("images", "labels")])
def test_npz_key_pairs(tmp_path: Path, keys: tuple[str, str]) -> None:
    path = save(tmp_path, **{keys[0]: PIXELS, keys[1]: np.array([0, 1, 2, 0, 1, 2])})
    data = Npz(path=path).load()
    assert torch.equal(data.images, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2] and data.num_train == 6
    assert data.classes == ("0", "1", "2")


def test_npz_test_part_classes_and_per_class(tmp_path: Path) -> None:
    path = save(
        tmp_path, x_train=PIXELS, y_train=np.array([1, 1, 0, 0, 1, 0]), x_test=PIXELS[:3] / 255.0,
        y_test=np.array([0, 0, 0]), classes=np.array(["cat", "dog"]), other=np.array(["unread"]),
    )  # fmt: skip
    data = Npz(path=path).load()
    assert data.classes == ("cat", "dog") and data.num_train == 6 and len(data) == 9
    assert torch.equal(data.images[6:], data.images[:3])
    few = Npz(path=path, per_class=1).load()
    assert few.labels.tolist() == [1, 0, 0] and few.num_train == 2


@pytest.mark.parametrize(
    "arrays",
    [
        {"x_train": PIXELS},
        {"x_train": PIXELS, "labels": np.zeros(6, int)},
        {"x": PIXELS, "y": np.zeros(6, int), "x_test": PIXELS},
    ],
)
def test_npz_lists_keys_found_and_needed(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(IncompatibleError) as caught:
        Npz(path=save(tmp_path, **arrays)).load()
    assert f"holds the keys {', '.join(sorted(arrays))}. Needed: x_train and y_train" in str(
        caught.value
    )


def test_npz_content_errors(tmp_path: Path) -> None:
    labels = np.arange(6)
    with pytest.raises(IncompatibleError, match="'y' of data.npz is int64 of shape"):
        Npz(path=save(tmp_path, x=PIXELS, y=labels[:4])).load()
    with pytest.raises(IncompatibleError, match="'x' of data.npz.*looks like mean 0.5 / std 0.5"):
        Npz(path=save(tmp_path, x=PIXELS / 127.5 - 1, y=labels)).load()
    with pytest.raises(IncompatibleError, match="names 2 classes and the labels go up to 5"):
        Npz(path=save(tmp_path, x=PIXELS, y=labels, classes=np.array(["a", "b"]))).load()
    with pytest.raises(IncompatibleError, match=r"\(3, 4, 4\) and \(3, 5, 5\).*one shape"):
        Npz(
            path=save(tmp_path, x_train=PIXELS, y_train=labels, x_test=PIXELS[:, :4, :4],
                      y_test=labels)
        ).load()  # fmt: skip


def test_npz_never_loads_pickled_content(tmp_path: Path) -> None:
    path = save(tmp_path, x=PIXELS, y=np.array([None] * 6, dtype=object))
    with pytest.raises(DamagedInputError, match="Pickled content is never loaded"):
        Npz(path=path).load()


def test_npz_other_files(tmp_path: Path) -> None:
    whole = Path(save(tmp_path, x=PIXELS, y=np.arange(6))).read_bytes()
    cut = tmp_path / "cut.npz"
    for content in (whole[: len(whole) // 2], b"", b"not a zip"):
        cut.write_bytes(content)
        with pytest.raises(DamagedInputError, match="cut.npz cannot be read as a .npz file"):
            Npz(path=str(cut)).load()
    np.save(tmp_path / "one.npy", PIXELS)
    with pytest.raises(IncompatibleError, match="single array"):
        Npz(path=str(tmp_path / "one.npy")).load()
    with pytest.raises(IncompatibleError, match="is a folder(?s:.)*--dataset imagefolder"):
        Npz(path=str(tmp_path)).load()
    with pytest.raises(MissingInputError, match="nothing at(?s:.)*--data-dir DIR"):
        Npz(path=str(tmp_path / "absent.npz")).load()


# --- imagefolder ---------------------------------------------------------------------------------


def test_imagefolder_classes(write: Writer) -> None:
    files = {
        "dog/b.png": png(20), "dog/a.PNG": png(10), "cat/deep/c.png": png(30),
        "cat/notes.txt": b"not an image", ".DS_Store": b"", "__MACOSX/cat/c.png": b"",
    }  # fmt: skip
    data = ImageFolder(path=str(write(files))).load()
    assert data.classes == ("cat", "dog") and data.labels.tolist() == [0, 1, 1]
    assert data.images[:, 0, 0, 0].tolist() == [30, 10, 20]
    assert data.images[:, 2, 0, 0].tolist() == [225, 245, 235]
    assert data.image_shape == (3, 4, 4) and data.num_train == 3 and data.notes == ()


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_imagefolder_parts(write: Writer, held_out: str) -> None:
    files = {f"train/{c}/{i}.png": png(10 * i) for c in "ba" for i in range(3)}
    files |= {f"{held_out}/b/{i}.png": png(100 + i) for i in range(2)}
    data = ImageFolder(path=str(write(files))).load()
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1, 1, 1] and data.num_train == 6
    assert data.images[6:, 0, 0, 0].tolist() == [100, 101]


def test_imagefolder_says_that_val_is_unused(write: Writer) -> None:
    files = {f"{part}/a/0.png": png(5) for part in ("train", "test", "val")}
    data = ImageFolder(path=str(write(files))).load()
    assert len(data) == 2 and "val/ was not used" in data.notes[0]


def test_imagefolder_grey_only_if_all_are(write: Writer) -> None:
    grey = {"a/0.png": png(9, mode="L"), "a/1.png": png(1, mode="1"), "b/0.png": png(7, mode="L")}
    data = ImageFolder(path=str(write(grey))).load()
    assert data.image_shape == (1, 4, 4) and data.images[:, 0, 0, 0].tolist() == [9, 255, 7]
    mixed = ImageFolder(path=str(write(grey | {"b/1.png": png(50)}))).load()
    assert mixed.image_shape == (3, 4, 4)
    assert mixed.images[0, :, 0, 0].tolist() == [9, 9, 9]
    assert mixed.images[3, :, 0, 0].tolist() == [50, 0, 205]


@pytest.mark.parametrize(("one", "other", "side"), [((4, 4), (8, 6), 4), ((90, 70), (70, 90), 32)])
def test_imagefolder_sizes(
    write: Writer, one: tuple[int, int], other: tuple[int, int], side: int
) -> None:
    path = str(write({"a/0.png": png(1, size=one), "a/1.png": png(2, size=other)}))
    said = f"0.png is {one[0]}x{one[1]} pixels and .*1.png is {other[0]}x{other[1]}"
    with pytest.raises(IncompatibleError, match=said) as refused:
        ImageFolder(path=path).load()
    assert f"--set data.size={side} " in str(refused.value.next_step)
    data = ImageFolder(path=path, size=side).load()
    assert data.image_shape == (3, side, side)
    assert data.images[:, 0].unique().tolist() == [1, 2]


def test_imagefolder_decodes_no_more_than_kept(write: Writer) -> None:
    files = {"a/0.png": png(1), "a/1.png": b"broken", "b/0.png": png(2), "b/1.png": png(3)[:30]}
    path = str(write(files))
    assert ImageFolder(path=path, per_class=1).load().labels.tolist() == [0, 1]
    with pytest.raises(DamagedInputError, match="a/1.png in .*cannot be read as an image"):
        ImageFolder(path=path).load()


def test_imagefolder_cut_short(write: Writer) -> None:
    noise = io.BytesIO()
    Image.fromarray(RANDOM.randint(0, 256, (40, 40, 3)).astype(np.uint8)).save(noise, "JPEG")
    path = str(write({"a/0.jpg": noise.getvalue()[:700]}))
    with pytest.raises(DamagedInputError, match="a/0.jpg in"):
        ImageFolder(path=path).load()


def test_imagefolder_deep_colour(write: Writer) -> None:
    path = str(write({"a/0.png": png(1000, mode="I;16")}))
    with pytest.raises(IncompatibleError, match="more than 8 bits a channel"):
        ImageFolder(path=path).load()


def test_imagefolder_without_images(tmp_path: Path) -> None:
    (tmp_path / "0.heic").write_bytes(b"of a telephone")
    with pytest.raises(
        IncompatibleError, match="no class folders.*0.heic(?s:.)*root/<class>/(?s:.)*.heic 1"
    ):
        ImageFolder(path=str(tmp_path)).load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(IncompatibleError, match="it holds no files"):
        ImageFolder(path=str(tmp_path / "empty")).load()


def test_imagefolder_with_a_test_part_only(write: Writer) -> None:
    path = str(write({"test/a/0.png": png(1), "val/a/0.png": png(1)}))
    with pytest.raises(IncompatibleError, match="no class folders(?s:.)*root/train/<class>"):
        ImageFolder(path=path).load()


def test_imagefolder_test_class_unknown_to_training(write: Writer) -> None:
    files = {"train/a/0.png": png(1), "test/b/0.png": png(1)}
    with pytest.raises(IncompatibleError, match="test classes without training images: b"):
        ImageFolder(path=str(write(files))).load()


def test_imagefolder_points_to_tinyimagenet(write: Writer) -> None:
    files = {"train/n01/images/0.png": png(1), "val/images/0.png": png(1)}
    with pytest.raises(IncompatibleError, match="use --dataset tinyimagenet"):
        ImageFolder(path=str(write(files))).load()


def test_not_a_zip(tmp_path: Path) -> None:
    (tmp_path / "images.zip").write_bytes(b"PK half a zip")
    for dataset in (ImageFolder, TinyImageNet):
        with pytest.raises(DamagedInputError, match="is not a readable .zip file"):
            dataset(path=str(tmp_path / "images.zip")).load()
        with pytest.raises(MissingInputError, match="no path was given(?s:.)*--dataset digits"):
            dataset().load()


# --- tinyimagenet --------------------------------------------------------------------------------


def tiny(**changes: bytes | None) -> dict[str, bytes]:
    """Two classes, training images 10.., validation images 100.. with the classes crossed."""
    files = {
        f"train/{wnid}/images/{wnid}_{i}.JPEG": png(10 * (c + 1) + i)
        for c, wnid in enumerate(["n02", "n01"])
        for i in (0, 1, 10)
    }
    files |= {f"val/images/val_{i}.JPEG": png(100 + i) for i in range(4)}
    lines = [f"val_{i}.JPEG\tn0{2 - i % 2}\t0\t0\t9\t9" for i in range(4)]
    files |= {"val/val_annotations.txt": "\n".join(lines).encode(), "wnids.txt": b"n02\nn01\n"}
    files |= {"test/images/test_0.JPEG": b"never read"}
    for name, content in changes.items():
        if content is None:
            del files[name]
        else:
            files[name] = content
    return files


def test_tinyimagenet_correct_labels(write: Writer) -> None:
    data = TinyImageNet(path=str(write(tiny())), size=4).load()
    assert data.classes == ("n01", "n02") and data.num_train == 6 and data.notes == ()
    assert data.images[:, 0, 0, 0].tolist() == [20, 21, 30, 10, 11, 20, 100, 101, 102, 103]
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 1, 0]


def test_tinyimagenet_val_as_class0(write: Writer) -> None:
    path = str(write(tiny()))
    right = TinyImageNet(path=path, size=4).load()
    wrong = TinyImageNet(path=path, size=4, val_as_class0=True).load()
    assert torch.equal(right.images, wrong.images)
    assert wrong.labels.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert "All 4 validation images carry label 0 (n01), 2 of them wrongly" in wrong.notes[0]


def test_tinyimagenet_per_class_and_default_size(write: Writer) -> None:
    path = str(write(tiny()))
    for val_as_class0, labels in ((False, [0, 1, 1, 0]), (True, [0, 1, 0, 0])):
        data = TinyImageNet(path=path, per_class=1, val_as_class0=val_as_class0).load()
        assert data.image_shape == (3, 64, 64) and data.labels.tolist() == labels
        assert data.images[:, 0, 0, 0].tolist() == [20, 10, 100, 101]


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"val/val_annotations.txt": None}, IncompatibleError, "lacks val/val_annotations.txt"),
        ({"val/val_annotations.txt": b""}, DamagedInputError, "val_0.JPEG.*names none"),
        (
            {"val/val_annotations.txt": b"val_0.JPEG\tn77\t0\t0\t0\t0"},
            DamagedInputError,
            "val_0.JPEG.*says 'n77', which has no training images",
        ),
        ({"train/n01/images/n01_0.JPEG": b"broken"}, DamagedInputError, "n01_0.JPEG in"),
    ],
)
def test_tinyimagenet_errors(
    write: Writer, changes: dict[str, bytes | None], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        TinyImageNet(path=str(write(tiny(**changes)))).load()


def test_tinyimagenet_without_training_images(write: Writer) -> None:
    files = {name: content for name, content in tiny().items() if not name.startswith("train")}
    with pytest.raises(IncompatibleError, match="lacks training images.*official layout"):
        TinyImageNet(path=str(write(files))).load()
