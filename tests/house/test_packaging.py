"""What gets installed is what is in the folders, under one name."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def config(repo):
    parser = configparser.ConfigParser()
    parser.read(repo / "setup.cfg")
    return parser


def on_disk(repo: Path, folders) -> dict[str, Path]:
    """Every file of ours that an installation needs, by its path in site-packages."""
    found = {}
    for folder, package in folders.items():
        for path in sorted((repo / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                inside = path.relative_to(repo / folder).as_posix()
                found[f"{package.replace('.', '/')}/{inside}"] = path
    return found


def test_setup_cfg_lists_every_package(repo, folders, config):
    listed = config["options"]["packages"].split()
    on_path = {
        name.removesuffix("/__init__.py").replace("/", ".")
        for name in on_disk(repo, folders)
        if name.endswith("/__init__.py")
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == on_path


def test_folders_are_mapped_as_the_code_imports_them(folders, config):
    lines = config["options"]["package_dir"].strip().splitlines()
    mapped = dict(tuple(part.strip() for part in line.split("=")) for line in lines)
    assert mapped == {package: folder for folder, package in folders.items()}


def test_the_container_copies_what_an_installation_needs(repo, folders):
    text = (repo / "Containerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    assert copied == ["setup.cfg pyproject.toml README.md", *folders]
    for folder in folders:
        assert f"COPY {folder} {folder}/" in text
    page = (repo / "docs" / "installation.md").read_text(encoding="utf-8")
    wheels = "--index-url https://download.pytorch.org/whl/cpu"
    assert wheels in text and wheels in page and "Containerfile" in page
    for command in re.findall(r"^#   (podman \S+ [^(]*?)(?:  .*)?$", text, re.MULTILINE):
        assert command.strip() in page


def test_every_folder_with_code_is_a_package(repo, folders):
    files = on_disk(repo, folders)
    for name in files:
        if name.endswith(".py"):
            assert f"{name.rsplit('/', 1)[0]}/__init__.py" in files, name


def test_the_wheel_holds_everything_under_one_name(repo, folders, tmp_path):
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed; pip install -e '.[test]' brings it")
    checkout, out = tmp_path / "checkout", tmp_path / "wheel"
    out.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        checkout.mkdir(exist_ok=True)
        shutil.copy(repo / name, checkout)
    for folder in folders:
        shutil.copytree(
            repo / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    expected = set(on_disk(checkout, folders))
    backend = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", backend, str(out)], cwd=checkout, capture_output=True, text=True
    )
    if done.returncode and "bdist_wheel" in done.stderr:
        pytest.skip("setuptools 77 or newer is needed to build a wheel without the wheel package")
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = out.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected - names == set()
    assert "fedre_privacy/py.typed" in names
    assert {
        "fedre_privacy/attacks/inversion/gradient_descent.py",
        "fedre_privacy/eval/report/figures.py",
    } <= (names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fedre_privacy"}
    info = next(top for top in tops if top.endswith(".dist-info"))
    scripts = zipfile.ZipFile(wheel).read(f"{info}/entry_points.txt").decode()
    assert "fedre-train = fedre_privacy.cli.train:main" in scripts
    assert "fedre-attack = fedre_privacy.cli.attack:main" in scripts


@pytest.mark.parametrize("folder", ["attacks", "defenses", "eval"])
def test_the_folders_are_not_importable_by_their_own_name(repo, folder):
    # A second copy of every class would fill the registries twice.
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=repo, capture_output=True, text=True
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError") and f"fedre_privacy.{folder}" in last
