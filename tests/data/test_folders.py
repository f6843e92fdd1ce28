"""Folders of images as people keep them: taken rightly, counted in a note, or refused."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from fedre_privacy.core.errors import DamagedInputError, FedreError, IncompatibleError
from fedre_privacy.data import ImageData
from fedre_privacy.data.imagefolder import ImageFolder
from fedre_privacy.data.npz import Npz

NOISE = np.random.default_rng(0)


def picture(*, mode: str = "RGB", size: tuple[int, int] = (6, 6)) -> Image.Image:
    depth = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    return Image.fromarray(NOISE.integers(0, 255, (size[1], size[0], *depth), dtype=np.uint8))


def stored(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


CLASSES = {f"{label}/{number}.png": stored(picture()) for label in "ab" for number in range(3)}


def fill(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if content or not name.endswith("/"):
            (root / name).write_bytes(content)
        else:
            (root / name).mkdir()
    return root


def pack(root: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(root / "all.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return root / "all.zip"


@pytest.fixture(params=[fill, pack], ids=["folder", "zip"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., ImageData]:
    """Write files to a folder or a .zip, and load them."""

    def made(files: Mapping[str, bytes], **settings: int) -> ImageData:
        return ImageFolder(path=str(request.param(tmp_path, files)), **settings).load()

    return made


Load = Callable[..., ImageData]


def noted(data: ImageData, *words: str) -> None:
    assert all(word in " ".join(data.notes) for word in words), data.notes


# --- one image -----------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(1, 9))
def test_images_stand_upright(load: Load, turn: int) -> None:
    exif = Image.Exif()
    exif[0x112] = turn
    turned = stored(picture(size=(6, 6)), "JPEG", exif=exif, quality=100)
    data = load(CLASSES | {"a/9.jpg": turned})
    seen = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(turned))))
    assert np.array_equal(data.images[3].permute(1, 2, 0).numpy(), seen)
    assert data.notes == () if turn == 1 else not noted(data, "upright", "1 image")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_data_take_nothing(load: Load) -> None:
    odd = stored(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert len(load(CLASSES | {"a/9.jpg": odd})) == 7


@pytest.mark.parametrize("name", ["x.jfif", "x.JPE", "x.Jpeg"])
def test_other_endings_of_jpeg(load: Load, name: str) -> None:
    data = load(CLASSES | {f"a/{name}": stored(picture(), "JPEG")})
    assert len(data) == 7 and data.notes == ()


def test_webp_in_capital_letters(load: Load) -> None:
    assert len(load(CLASSES | {"b/X.WEBP": stored(picture(), "WEBP")})) == 7


def test_other_files_are_counted(load: Load) -> None:
    others = {"a/0.heic": b"?", "a/1.HEIC": b"?", "b/scan": b"?", "a/notes.txt": b"", "README": b""}
    data = load(CLASSES | others)
    assert len(data) == 6 and data.notes == (
        "Left out by their endings: 3 files (.heic 2, no ending 1).",
    )


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_left_out_and_counted(load: Load, mode: str) -> None:
    clear, solid = picture(mode=mode), picture(mode=mode)
    solid.putalpha(255)
    data = load({"a/0.png": stored(clear), "a/1.png": stored(solid)})
    assert data.image_shape[0] == len(mode) - 1
    assert np.array_equal(data.images[0].permute(1, 2, 0).numpy(), np.asarray(clear)[..., :-1])
    noted(data, "transparen", "1 image")


def test_the_first_of_several_frames_is_read(load: Load) -> None:
    frames = [picture(mode="L") for _ in range(3)]
    files = {
        f"a/0.{kind}": stored(frames[0], kind, save_all=True, append_images=frames[1:])
        for kind in ("gif", "tiff")
    }
    data = load(files | {"a/1.gif": stored(frames[0], "gif")})
    assert all(np.array_equal(image[0].numpy(), np.asarray(frames[0])) for image in data.images)
    noted(data, "first was read", "2 images")


def test_the_upper_bits_of_deep_colour(load: Load) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    deep = NOISE.integers(0, 65536, (6, 6, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in deep)
    head = struct.pack(">IIBBBBB", 6, 6, 16, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows))
    data = load(CLASSES | {"a/9.png": png + chunk(b"IEND", b"")})
    assert np.array_equal(data.images[3].permute(1, 2, 0).numpy(), (deep >> 8).astype(np.uint8))
    noted(data, "upper 8", "1 image")


def test_an_empty_file_is_named(load: Load) -> None:
    with pytest.raises(DamagedInputError, match="a/9.png in .* cannot be read .*it is empty"):
        load(CLASSES | {"a/9.png": b""})


# --- classes and parts ---------------------------------------------------------------------------


def test_empty_classes_are_named(load: Load) -> None:
    data = load(CLASSES | {"aa/": b"", "c/deep/": b""})
    assert data.classes == ("a", "b")
    noted(data, "empty of images: 2 folders (aa, c)")


@pytest.mark.parametrize(
    ("train", "held_out"),
    [("training", "validation"), ("Train", "Test"), ("TRAINING", "testing"), ("train", "valid")],
)
def test_parts_by_other_names(load: Load, train: str, held_out: str) -> None:
    plain = {f"{part}/{name}": held for part in ("train", "test") for name, held in CLASSES.items()}
    named = {
        name.replace("train/", f"{train}/").replace("test/", f"{held_out}/"): held
        for name, held in plain.items()
    }
    data = load(named | {f"{train}/aa/": b""})
    assert data.num_train == 6 and len(data) == 12 and data.classes == ("a", "b")
    noted(data, f"{train} was read as the training part, {held_out} as the test part", "aa")


def test_other_folders_beside_parts_are_left_out_with_a_note(load: Load) -> None:
    parts = {f"{part}/{name}": held for part in ("train", "test") for name, held in CLASSES.items()}
    beside = dict.fromkeys(("extra/a/0.png", "logo.png"), CLASSES["a/0.png"])
    data = load(parts | beside | {"val/": b""})
    assert data.num_train == 6 and len(data) == 12
    noted(data, "neither a training nor a test part: extra", "beside the parts: 1 image", "(val)")


def test_unlabelled_test_images_are_left_out_with_a_note(load: Load) -> None:
    parts = {f"train/{name}": held for name, held in CLASSES.items()}
    data = load(parts | {f"test/{i}.png": CLASSES["a/0.png"] for i in range(9)})
    assert data.num_train == len(data) == 6
    noted(data, "beside the class folders: 9 images")


def test_a_class_may_be_named_like_a_part(load: Load) -> None:
    files = {f"{label}/{i}.png": stored(picture()) for label in ("bus", "train") for i in range(2)}
    data = load(files)
    assert data.classes == ("bus", "train") and len(data) == 4
    noted(data, "train was read as a class, like bus")


@pytest.mark.parametrize("part", ["train", "Training", "test", "val"])
def test_what_may_be_a_class_or_a_part_is_refused(load: Load, part: str) -> None:
    files = {f"{label}/{side}/1.png": stored(picture())
             for label in ("bus", "car", part) for side in ("front", "bus")}  # fmt: skip
    with pytest.raises(IncompatibleError, match=f"{part} may be a part .*or a class"):
        load(files)


def test_two_folders_for_one_part_are_refused(load: Load) -> None:
    files = {f"{part}/{name}": held for part in ("train", "training")
             for name, held in CLASSES.items()}  # fmt: skip
    with pytest.raises(IncompatibleError, match="train and training, which name the same part"):
        load(files)


def test_images_beside_class_folders(load: Load) -> None:
    loose = {f"{number}.png": stored(picture()) for number in range(6)}
    noted(load(CLASSES | {"0.png": loose["0.png"]}), "beside the class folders: 1 image")
    with pytest.raises(IncompatibleError, match="6 images beside its class folders"):
        load(CLASSES | loose)


def test_one_part_around_everything_is_the_whole(load: Load) -> None:
    data = load({f"data/validation/{name}": held for name, held in CLASSES.items()})
    assert data.classes == ("a", "b") and data.num_train == len(data) == 6
    noted(data, "All images lie in validation/; they count as training images")


# --- photographs without class folders -----------------------------------------------------------

PHOTOGRAPHS = {f"{number}.jpg": stored(picture(), "JPEG") for number in range(4)}


def test_a_flat_folder_is_one_class(load: Load) -> None:
    data = load(PHOTOGRAPHS)
    assert len(data) == 4 and data.num_classes == 1 and data.labels.tolist() == [0] * 4
    noted(data, "one class", "labels.csv", "gradients are zero")


@pytest.mark.parametrize(
    ("table", "labels"),
    [
        ("file,label\n0.jpg,dog\n1.jpg,cat\n2.jpg,dog\n3.jpg,cat\n", [0, 0, 1, 1]),
        ("\ufeffFilename;Class\r\n./0.jpg;dog\r\n1.jpg;cat\r\n2.jpg;dog\r\n3.jpg;cat\r\n",
         [0, 0, 1, 1]),
        ("label\tid\n10\t0\n9\t1\n10\t2\n9\t3\n", [0, 0, 1, 1]),
    ],
    ids=["plain", "spreadsheet", "numbers"],
)  # fmt: skip
def test_labels_of_a_table(load: Load, table: str, labels: list[int]) -> None:
    data = load(PHOTOGRAPHS | {"labels.csv": table.encode()})
    assert data.labels.tolist() == labels and data.classes in (("cat", "dog"), ("9", "10"))
    assert data.notes == ("The classes are those of labels.csv.",)
    few = load(PHOTOGRAPHS | {"labels.csv": table.encode()}, per_class=1)
    assert torch.equal(few.images, data.images[[0, 2]])


def test_a_table_above_a_folder_of_photographs(load: Load) -> None:
    inside = {f"top/images/{name}": content for name, content in PHOTOGRAPHS.items()}
    table = b"file,label\nimages/0.jpg,a\n1.jpg,b\n9.jpg,b\n3.jpg,\n"
    data = load(inside | {"top/labels.csv": table})
    assert data.classes == ("a", "b") and len(data) == 2
    noted(data, "Left out, having no label in top/labels.csv: 2 images", "1 line of")


def test_a_table_of_two_flat_parts(load: Load) -> None:
    parts = {f"train/{name}": held for name, held in PHOTOGRAPHS.items()}
    parts |= {f"test/t{name}": held for name, held in PHOTOGRAPHS.items()}
    table = "file,label\n" + "".join(f"{n}.jpg,{n % 2}\nt{n}.jpg,{n % 2}\n" for n in range(4))
    data = load(parts | {"labels.csv": table.encode()})
    assert data.num_train == 4 and data.labels.tolist() == [0, 0, 1, 1] * 2


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"", "begins with nothing. Needed: the header file,label"),
        (b"0.jpg,cat\n", "begins with 0.jpg,cat. Needed"),
        (b"file,label\n0.jpg,cat\n0.jpg,dog\n", "gives 0.jpg two labels, cat and dog"),
        (b"file,label\nelsewhere.jpg,cat\n", "names none of its training images"),
        ("file,label\n0.jpg,caf\u00e9".encode("latin-1"), "cannot be read as a table"),
    ],
)
def test_tables_that_do_not_say_it(load: Load, table: bytes, said: str) -> None:
    with pytest.raises(FedreError, match=said):
        load(PHOTOGRAPHS | {"labels.csv": table})


def test_a_table_beside_class_folders_is_not_asked(load: Load) -> None:
    assert load(CLASSES | {"labels.csv": b"id,name\n0,a\n"}).notes == ()


# --- links ---------------------------------------------------------------------------------------


def test_linked_classes_and_images_are_followed_and_hidden_from_attacks(tmp_path: Path) -> None:
    elsewhere = fill(tmp_path / "elsewhere", {"0.png": CLASSES["a/0.png"]})
    one = fill(tmp_path / "one", {"1.png": CLASSES["a/1.png"]}) / "1.png"
    root = fill(tmp_path / "root", CLASSES)
    (root / "c").symlink_to(elsewhere)
    (root / "a" / "9.png").symlink_to(one)
    made = ImageFolder(path=str(root))
    data = made.load()
    assert data.classes == ("a", "b", "c") and len(data) == 8 and data.notes == ()
    assert set(made.sources()) == {root.resolve(), elsewhere.resolve(), one.resolve()}


def test_circles_doubles_and_ends_are_left_out_with_a_note(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", CLASSES)
    circles = {"a/round": root, "a/up": tmp_path, "c": root / "a"}
    ends = {"lost": tmp_path / "no", "b/itself.png": root / "b/itself.png"}
    for name, target in (circles | ends).items():
        (root / name).symlink_to(target)
    data = ImageFolder(path=str(root)).load()
    assert data.classes == ("a", "b") and len(data) == 6
    noted(data, "left out: 3 (a/round -> ", "left out: 2 (b/itself.png, lost)")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    root = fill(tmp_path, CLASSES)
    os.mkfifo(root / "a" / "9.png")
    noted(ImageFolder(path=str(root)).load(), "left out: 1 (a/9.png)")


def test_links_in_a_zip_are_never_followed(tmp_path: Path) -> None:
    secret = fill(tmp_path / "secret", CLASSES)
    path = pack(tmp_path, CLASSES)
    with zipfile.ZipFile(path, "a") as archive:
        for name, target in (("c", secret), ("a/9.png", secret / "a/0.png")):
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, str(target))
    data = ImageFolder(path=str(path)).load()
    assert data.classes == ("a", "b") and len(data) == 6
    noted(data, "not followed: 2 links")


def test_a_zip_of_windows(tmp_path: Path) -> None:
    path = pack(tmp_path, {name.replace("/", "\\"): held for name, held in CLASSES.items()})
    assert ImageFolder(path=str(path)).load().classes == ("a", "b")


# --- npz -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [40_000, 5_000_000])
def test_sparse_label_ids_become_classes(tmp_path: Path, step: int) -> None:
    images = NOISE.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(6) % 3 * step)
    data = Npz(path=str(tmp_path / "x.npz")).load()
    assert data.labels.tolist() == [0, 1, 2] * 2 and data.classes == ("0", str(step), str(2 * step))
    noted(data, "3 classes", f"ids up to {2 * step}")


def test_classes_without_images_are_counted(tmp_path: Path) -> None:
    images = NOISE.integers(0, 256, (4, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=[1, 2, 4, 4])
    data = Npz(path=str(tmp_path / "x.npz")).load()
    assert data.num_classes == 5 and data.labels.tolist() == [1, 2, 4, 4]
    noted(data, "2 of 5 classes have no image: 0, 3")
