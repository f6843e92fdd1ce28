"""Hashes of what a folder holds, so that a change is found where a file is read.

Two lists lie in a folder of recorded work. ``manifest.json`` covers what was recorded; it is
written once, when the work completes, and its own hash names the whole. ``drawn.json`` covers
pictures and pages, which are made from the rest and can be made again.

A hash shows that a file is the one that was listed. It does not show who listed it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from . import files
from .errors import DamagedInputError, MissingInputError
from .typed_yaml import Count, Hash, convert_value

MANIFEST, DRAWN = "manifest.json", "drawn.json"
SCHEMA = 1

MADE_FROM = "run_manifest"
"""Key of an attack's record: the hash of the manifest of the run that was attacked."""

UNCHANGED, CHANGED, ABSENT = "unchanged", "changed", "absent"


class ManifestEntry(msgspec.Struct, frozen=True):
    """A file as it was when it was listed: its size, and the SHA-256 of its content (hex)."""

    bytes: Count
    sha256: Hash


class _Content(msgspec.Struct):
    schema: Count
    files: dict[str, ManifestEntry]


@dataclass(frozen=True)
class Manifest:
    """The hashes of files in a folder and below it.

    Args:
        entries: path relative to the folder, with slashes, to the file as it was.
        sha256: of the manifest's own file (hex).
    """

    path: Path
    entries: Mapping[str, ManifestEntry]
    sha256: str

    @property
    def folder(self) -> Path:
        """The folder whose files are listed."""
        return self.path.parent

    def recorded(self, folder: str, pattern: str) -> list[str]:
        """Names of the listed files in a folder below, ascending, where no other is there.

        Raises:
            DamagedInputError: one is there and was never listed.
        """
        found = (PurePosixPath(name) for name in self.entries)
        listed = sorted(path.name for path in found if str(path.parent) == folder)
        for path in sorted((self.folder / folder).glob(pattern)):
            if path.name not in listed:
                self.check(path)
        return listed

    def state(self, name: str) -> str:
        """Whether a listed file is unchanged, changed or absent."""
        path, entry = self.folder / name, self.entries[name]
        if not path.is_file():
            return ABSENT
        same = path.stat().st_size == entry.bytes and files.file_sha256(path) == entry.sha256
        return UNCHANGED if same else CHANGED

    def check(self, path: Path) -> None:
        """Refuse a file that is not the one listed; a file is hashed once while it stays the same.

        Raises:
            DamagedInputError: it is changed, gone, or is there and was never listed.
        """
        name = path.relative_to(self.folder).as_posix()
        found = self.state(name) if name in self.entries else None
        if found == UNCHANGED or (found is None and not path.exists()):
            return  # who reads what was never there says so
        why = {
            CHANGED: f"{path} is not the file that was recorded: its SHA-256 differs from the one "
            f"in {self.path.name}.",
            ABSENT: f"{path} was recorded and is no longer there.",
            None: f"{path} was not recorded: {self.path.name} does not list it.",
        }
        raise DamagedInputError(
            why[found],
            next_step=f"See all differences with fedre-attack verify {self.folder}; restore the "
            "file from a copy, or give the command that made it with --restart.",
        )


def read_manifest(path: Path) -> Manifest:
    """Read a list of hashes.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: it is not such a list, or names files outside its folder.
    """
    content = convert_value(files.read_json(path, dict), _Content, path)
    if content.schema != SCHEMA:
        raise DamagedInputError(
            f"{path} has schema {content.schema}; this version reads schema {SCHEMA}."
        )
    for name in content.files:
        plain = PurePosixPath(name)
        if name != str(plain) or plain.is_absolute() or ".." in plain.parts:
            raise DamagedInputError(f"{path}: {name!r} is no path inside the folder.")
    return Manifest(path, content.files, files.file_sha256(path))


def complete_manifest(folder: Path) -> Manifest:
    """The manifest of a folder whose work is complete.

    Raises:
        DamagedInputError: it has none, or it is not readable.
    """
    try:
        return read_manifest(folder / MANIFEST)
    except (MissingInputError, DamagedInputError) as error:
        problems = error.problems
        if isinstance(error, MissingInputError):
            problems = (
                f"{folder} is not covered by a manifest: {MANIFEST} is absent, because an earlier "
                "version recorded it or because somebody removed it.",
            )
        raise DamagedInputError(
            *problems,
            next_step="If you trust the files as they are, cover them from now on: fedre-attack "
            f"verify {folder} --accept.",
        ) from None


def manifest_text(
    folder: Path, covered: Iterable[Path], *, ahead: Mapping[str, str] | None = None
) -> str:
    """The list of a folder's files, sorted by name.

    Args:
        covered: files in the folder and below it.
        ahead: name to text of files that will be written after this list.

    Raises:
        DamagedInputError: one of the files is none.
        OSError: one of them cannot be read.
    """
    entries = {}
    for path in covered:
        if not path.is_file():
            raise DamagedInputError(
                f"{path} is no file, or a link to none.",
                next_step="Remove it, and give the command that made its folder with --restart.",
            )
        size, sha256 = path.stat().st_size, files.file_sha256(path)
        entries[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": sha256}
    for name, text in (ahead or {}).items():
        data = text.encode("utf-8")
        entries[name] = {"bytes": len(data), "sha256": files.bytes_sha256(data)}
    content = {"schema": SCHEMA, "files": dict(sorted(entries.items()))}
    return json.dumps(content, indent=1) + "\n"


def write_manifest(
    folder: Path,
    covered: Iterable[Path],
    *,
    ahead: Mapping[str, str] | None = None,
    name: str = MANIFEST,
) -> None:
    """Write `manifest_text` to a folder, as one of its two lists."""
    files.write_text(folder / name, manifest_text(folder, covered, ahead=ahead))


def cover(folder: Path, record: Mapping[str, Any]) -> None:
    """List the files of a folder of finished work, and the record, which is written after that.

    Folders below and pictures and pages of their own list (`DRAWN`) are left out.
    """
    apart = {"record.json", "log.txt", MANIFEST, DRAWN}
    written = [
        path
        for path in folder.iterdir()
        if path.is_file() and path.name not in apart and not path.name.startswith(".")
    ]
    write_manifest(folder, written, ahead={"record.json": files.json_text(record)})
    files.write_json(folder / "record.json", record)


def figure_names(folder: Path) -> frozenset[str]:
    """Names of the pictures and pages of a folder; none if one of them is missing."""
    try:
        names = frozenset(read_manifest(folder / DRAWN).entries)
    except (MissingInputError, DamagedInputError):  # what can be made again is
        return frozenset()
    return names if all((folder / name).is_file() for name in names) else frozenset()
