"""Images for a script: `fedre_privacy.load_images`."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedre_privacy as fp
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.data.imagefolder import ImageFolder

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def strict():
    """A warning that no test asks for is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "photographs"
    root.mkdir()
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(root / f"{number}.png")
    return root


def floats(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def test_a_folder_a_zip_an_array_and_files_give_the_same(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    np.savez(tmp_path / "all.npz", images=PIXELS, labels=np.arange(4))
    for source in (folder, str(folder), tmp_path / "all.zip", tmp_path / "all.npz"):
        found = fp.load_images(source)
        assert found.dtype == torch.float32 and torch.equal(found, floats(PIXELS)), source
    backwards = [folder / f"{number}.png" for number in (3, 1)]
    assert torch.equal(fp.load_images(backwards), floats(PIXELS[[3, 1]]))
    assert torch.equal(fp.load_images(str(folder / "2.png")), floats(PIXELS[[2]]))


def test_folders_inside_are_read_in_the_order_of_their_paths(folder: Path) -> None:
    (folder / "b").mkdir()
    Image.fromarray(PIXELS[0]).save(folder / "b" / "0.png")
    (folder / "0.png").unlink()
    assert torch.equal(fp.load_images(folder), floats(PIXELS[[1, 2, 3, 0]]))


def test_sizes_and_channels(folder: Path, tmp_path: Path) -> None:
    small = fp.load_images(folder, 4)
    assert small.shape == (4, 3, 4, 4)
    assert torch.equal(small, ImageFolder(path=str(folder), size=4).load().floats(torch.arange(4)))
    grey = fp.load_images(folder, channels=1)
    assert torch.equal(grey[1, 0], torch.from_numpy(
        np.array(Image.fromarray(PIXELS[1]).convert("L"))).float() / 255)  # fmt: skip
    Image.fromarray(PIXELS[0, :, :, 0]).save(tmp_path / "grey.png")
    one = fp.load_images(tmp_path / "grey.png", channels=3)
    assert one.shape == (1, 3, 8, 8) and torch.equal(one[0, 0], one[0, 2])
    Image.fromarray(PIXELS[0, :6]).save(folder / "9.png")
    with pytest.raises(IncompatibleError, match="one size for all(?s:.)*size=6"):
        fp.load_images(folder)


def test_what_is_left_out_or_changed_is_a_warning(folder: Path) -> None:
    (folder / "x.heic").write_bytes(b"?")
    with pytest.warns(UserWarning, match="Left out by their endings: 1 file .*heic") as said:
        fp.load_images(folder)
    assert said[0].filename == __file__


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="nothing at .*absent"):
        fp.load_images(tmp_path / "absent")
    with pytest.raises(ConfigError, match="channels 1 or 3"):
        fp.load_images(folder, channels=4)
    with pytest.raises(IncompatibleError, match="is a folder. Needed: a list of image files"):
        fp.load_images([folder])
    (folder / "9.png").write_bytes(b"")
    with pytest.raises(DamagedInputError, match="9.png .*it is empty"):
        fp.load_images(folder)
    (tmp_path / "none").mkdir()
    for empty in (tmp_path / "none", []):
        with pytest.raises(IncompatibleError, match="no images"):
            fp.load_images(empty)
