"""A job on another machine: files arrive as bytes, it runs in its own folder, bytes go back.

The other machine may lack this package, so this module is sent as it is and imports nothing of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

Files = dict[str, bytes]
"""Contents by path, relative, with ``/`` between."""


class Parcel(TypedDict):
    """A job as it travels.

    Args:
        words: of its process: module, settings, folder of the benchmark, of the runs, and the rest;
            paths are relative to the folder that it runs in.
        files: settings, and the run where it was trained before.
        data: paths that the settings name. moved: environment variable that says where they lie.
        parent: the one with this process's number. threads: that the job may use.
    """

    words: list[str]
    files: Files
    data: list[str]
    moved: str
    parent: str
    threads: int


class Answer(TypedDict):
    """What came of a job: its process's exit code, what it said, and the files that it wrote."""

    code: int
    said: str
    files: Files


def tree(root: Path) -> Files:
    """All files below a folder, or the one file, by relative path."""
    if root.is_file():
        return {root.name: root.read_bytes()}
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def put(root: Path, content: Mapping[str, bytes]) -> None:
    """Write files below a folder."""
    for name, data in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def differing(needed: Mapping[str, str]) -> str:
    """Packages whose versions are others here, as a sentence; else empty."""
    wrong = []
    for name, wanted in needed.items():
        try:
            found = ".".join(map(str, sys.version_info[:2])) if name == "python" else version(name)
        except PackageNotFoundError:
            found = "none"
        if found != wanted:
            wrong.append(f"{name} {found}, not {wanted}")
    where = os.uname().nodename
    return f"{where} has {'; '.join(wrong)}: its numbers could be others." if wrong else ""


def work(parcel: Parcel, code: Files, needed: Mapping[str, str], *data: Files) -> Answer:
    """Do a job on this machine, in a folder that is removed afterwards.

    Args:
        code: modules that its process imports. needed: versions that this machine must have.
        data: what lies at each path that the parcel says.
    """
    if wrong := differing(needed):
        return Answer(code=1, said=wrong, files={})
    with tempfile.TemporaryDirectory(prefix="fedre-job-") as name:
        room = Path(name)
        put(room / "code", code)
        put(room, parcel["files"])
        moved = {}
        for number, (given, content) in enumerate(zip(parcel["data"], data, strict=True)):
            place = room / "data" / str(number)
            put(place, content)
            alone = list(content) == [Path(given).name]
            moved[given] = str(place / Path(given).name if alone else place)
        environment = {
            **os.environ,
            "PYTHONPATH": str(room / "code"),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(parcel["threads"])),
            parcel["moved"]: json.dumps(moved),
            parcel["parent"]: str(os.getpid()),
        }
        done = subprocess.run(
            [sys.executable, "-P", "-m", *parcel["words"]], cwd=room, env=environment, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        _, _, benchmark, runs, *_ = parcel["words"]
        made = {
            f"{part}/{path}": content
            for part in (benchmark, runs)
            for path, content in tree(room / part).items()
        }
        changed = {path: own for path, own in made.items() if parcel["files"].get(path) != own}
        said = done.stdout.decode("utf-8", errors="replace")
        return Answer(code=done.returncode, said=said, files=changed)
