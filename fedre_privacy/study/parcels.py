"""What a job takes along to another machine, and where what comes back is put."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from fedre_privacy.core import files
from fedre_privacy.core.errors import DamagedInputError
from fedre_privacy.data.base import MOVED
from fedre_privacy.runs.folder import COMPLETE, status_of

from .jobs import Job, Place
from .there import Files, Parcel, tree

PACKAGE = __name__.partition(".")[0]
SAME = ("torch", "numpy")
"""Packages whose versions decide about numbers: another machine must have the same."""

PARENT = "FEDRE_SWEEP_PARENT"
"""Environment variable by which a job knows the process that started it."""

BENCHMARK, RUNS, RECORD = "benchmark", "runs", "record.json"


def versions() -> dict[str, str]:
    """What decides about numbers, beside this package."""
    return {"python": sysconfig.get_python_version(), **{name: version(name) for name in SAME}}


def code(plugins: Iterable[str]) -> Files:
    """This package, and modules of one's own with what was imported from beside them."""
    found: Files = {}
    for name, module in list(sys.modules.items()):
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            found |= _package(name, getattr(module, "__path__", ()))
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    for name in plugins:
        top = sys.modules[name.partition(".")[0]]
        if hasattr(top, "__path__"):
            found |= _package(top.__name__, top.__path__)
            continue
        own = Path(str(top.__file__)).resolve()
        found[own.name] = own.read_bytes()
        if own.parent not in installed:
            found |= _beside(own.parent)
    return found


def _package(name: str, places: Iterable[str]) -> Files:
    below = name.replace(".", "/")
    return {f"{below}/{path}": data for place in places for path, data in tree(Path(place)).items()}


def _beside(folder: Path) -> Files:
    """Modules that this process imported from a folder."""
    paths = [Path(str(getattr(module, "__file__", ""))) for module in list(sys.modules.values())]
    own = {path for path in paths if path.resolve().parent == folder and path.is_file()}
    return {path.name: path.read_bytes() for path in own}


def data_of(job: Job) -> list[str]:
    """The path that a job's settings name for its data, if they do."""
    path = getattr(job.training.data, "path", None)
    return [str(path)] if path else []


def pack(job: Job, place: Place, words: Sequence[str], threads: int) -> Parcel:
    """Pack a job, with its run where that was trained before.

    Args:
        words: of its process on this machine, see `processes.Arguments`.
    """
    worker, settings, _, _, *rest = words
    run = place.runs / job.training.run_name
    before = tree(run) if status_of(run) == COMPLETE else {}
    there = f"{BENCHMARK}/jobs/{job.name}.yaml"
    return Parcel(
        words=[worker, there, BENCHMARK, RUNS, *rest],
        files={
            there: Path(settings).read_bytes(),
            **{f"{RUNS}/{run.name}/{path}": content for path, content in before.items()},
        },
        data=data_of(job),
        moved=MOVED,
        parent=PARENT,
        threads=threads,
    )


def take_up(job: Job, place: Place, made: Files) -> None:
    """Put what a job made where it would be, had it run here; its result comes last.

    Raises:
        DamagedInputError: a path leads elsewhere.
    """
    runs: dict[str, Files] = {}
    for name, content in made.items():
        part, _, path = name.partition("/")
        odd = {"", ".", ".."} & set(path.split("/"))  # an empty part would make a path absolute
        if part not in (BENCHMARK, RUNS) or odd:
            raise DamagedInputError(f"A job sent a file under the path '{name[:200]}'.")
        run, _, path = path.partition("/")
        if part == RUNS and path:
            runs.setdefault(run, {})[path] = content
    for run, own in runs.items():
        _put_run(place.runs / run, own)
    if result := made.get(f"{BENCHMARK}/jobs/{job.name}.json"):
        files.write_bytes(place.result(job), result)


def _put_run(folder: Path, content: Files) -> None:
    """Put a run in place: a new one whole, or what is new in one that was complete."""
    if status_of(folder) == COMPLETE:
        for name in sorted(content, key=lambda name: (name == RECORD, name)):
            files.write_bytes(folder / name, content[name])
        return
    begun = folder.with_name(f".{os.getpid()}.{folder.name}")
    for name, own in content.items():
        files.write_bytes(begun / name, own)
    shutil.rmtree(folder, ignore_errors=True)
    begun.rename(folder)
