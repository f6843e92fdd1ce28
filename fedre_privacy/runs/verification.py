"""Check a run's folder against its manifests: which files are what was recorded."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    FedreError,
    MissingInputError,
)
from fedre_privacy.core.files import read_json, write_text
from fedre_privacy.core.lock import LOCK, TEMPORARY, lock_folder
from fedre_privacy.core.manifest import (
    ABSENT,
    CHANGED,
    DRAWN,
    MADE_FROM,
    MANIFEST,
    UNCHANGED,
    manifest_text,
    read_manifest,
)

from .folder import COMPLETE, status_of
from .run import Run

UNLISTED, UNFINISHED, UNCOVERED = "not recorded", "unfinished", "not covered"
OTHER_RUN, UNREADABLE, LEFT, EXTRA = "of another run", "unreadable", "left by a kill", "extra"

WORDS = {
    CHANGED: "the file is not the one that was recorded",
    ABSENT: "the file was recorded and is gone",
    UNLISTED: "the file was added afterwards",
    UNFINISHED: "nothing is covered before training or attack are complete",
    UNCOVERED: "no manifest lists it: an earlier version made it, or the list was removed",
    OTHER_RUN: "it was made from other uploads, models or settings than the run's now",
    UNREADABLE: "the file cannot be read",
    LEFT: "a temporary file; the same command with --resume removes it",
    EXTRA: "nothing reads it",
}
"""What a finding means."""

HARMLESS = {UNCHANGED, LEFT, EXTRA}

RECORDED = ("uploads", "models", "private")
"""Folders of a run all of whose files are covered."""

READ = {"config.yaml", "record.json", "metrics.csv", "clients.csv"}
"""Files beside these folders that are read."""

DRAWINGS = {
    f"{name}.{ending}"
    for name in ("accuracy", "partition", "prototypes")
    for ending in ("png", "pdf", "svg", "csv")
} | {"clients.png", "clients.pdf", "clients.svg", "report.html"}
"""Pictures and pages, which ``drawn.json`` covers."""

OURS = {MANIFEST, DRAWN, LOCK, "log.txt"}
"""Files that no manifest covers."""


@dataclass(frozen=True)
class Finding:
    """What is known of one file.

    Args:
        file: relative to the run's folder.
        state: ``unchanged``, or one of `WORDS`.
        size: in bytes, now; None where it is gone.
    """

    file: str
    state: str
    size: int | None

    @property
    def bad(self) -> bool:
        """Whether a result may not rest on it."""
        return self.state not in HARMLESS


@dataclass(frozen=True)
class VerificationResult:
    """What `verify` found in a run's folder.

    Args:
        sha256: of the run's manifest; None if there is no readable one.
        findings: one per file, by name; those of attacks and audits after the run's.
    """

    folder: Path
    sha256: str | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every file is what was recorded."""
        return not self.bad()

    def bad(self) -> list[Finding]:
        """What is not as it was recorded."""
        return [finding for finding in self.findings if finding.bad]

    def table(self, *, everything: bool = False) -> list[dict[str, str]]:
        """Findings as rows: file, what was found, what that means."""
        return [
            {"file": one.file, "found": one.state, "meaning": WORDS.get(one.state, "")}
            for one in self.findings
            if everything or one.state != UNCHANGED
        ]

    @property
    def next_step(self) -> str:
        """What to do about a folder that is not as it was recorded."""
        if any(one.state == UNFINISHED for one in self.findings):
            return "Give the command that was stopped again with --resume."
        return (
            "Restore the files from a copy, or give the command that made them with --restart. If "
            f"you trust the folder as it is: fedre-attack verify {self.folder} --accept."
        )


def verify(
    run: str | Path, *, accept: bool = False, expect: str | None = None
) -> VerificationResult:
    """Check every file of a run, its attacks and audits against the hashes recorded with them.

    The hashes show what has changed since they were written; whoever can write the folder can
    write new ones. To compare with what somebody else published, give the hash that they name.

    Args:
        accept: cover the folder as it is now, whatever was recorded.
        expect: SHA-256 of the run's manifest, from its beginning on (8 hex digits at least).

    Raises:
        MissingInputError: no record in that folder.
        DamagedInputError: the manifest is not the expected one.
        ConfigError: `expect` is no hash.
        InUseError: with `accept`, another process works in the folder.
    """
    folder = Path(run)
    if not (folder / MANIFEST).is_file():
        Run(folder)  # refuses what is no run's folder
    if accept:
        _accept(folder)
    sha256 = None
    with suppress(FedreError):
        sha256 = read_manifest(folder / MANIFEST).sha256
    if expect is not None:
        _compare(folder, sha256, expect)
    parts = (folder, *_made_from(folder))
    findings = [one for part in parts for one in _findings(folder, part, sha256)]
    return VerificationResult(folder, sha256, tuple(findings))


def _compare(folder: Path, found: str | None, expect: str) -> None:
    wanted = expect.strip().lower()
    if not 8 <= len(wanted) <= 64 or set(wanted) - set("0123456789abcdef"):
        raise ConfigError(f"The expected hash is 8 to 64 hex digits; got '{expect}'.")
    if found is None or not found.startswith(wanted):
        raise DamagedInputError(
            f"The manifest of {folder} has SHA-256 {found or '(there is none)'}; expected was "
            f"{wanted}.",
            next_step="It is another run, or a changed one: ask whoever named that hash.",
        )


def _made_from(folder: Path) -> list[Path]:
    """Folders of the attacks on a run and of the audits of it."""
    found = [path for kind in ("attacks", "audits") for path in (folder / kind).glob("*")]
    return sorted(path for path in found if path.is_dir())


def _findings(top: Path, folder: Path, run_sha256: str | None) -> list[Finding]:
    """What one folder holds: a run without what was made from it, or an attack or audit."""
    states = _states(folder, attack=folder != top)
    if folder != top and states.get("record.json") == UNCHANGED:
        made_of = read_json(folder / "record.json", dict[str, Any]).get(MADE_FROM)
        if made_of != run_sha256:
            states["record.json"] = OTHER_RUN
    prefix = "" if folder == top else f"{folder.relative_to(top).as_posix()}/"
    found = []
    for name, state in sorted(states.items()):
        path = folder / name
        found.append(
            Finding(f"{prefix}{name}", state, path.stat().st_size if path.is_file() else None)
        )
    return found


def _states(folder: Path, *, attack: bool) -> dict[str, str]:
    """Name to state of the files of a folder that are covered or should be."""
    states: dict[str, str] = {}
    for list_name in (MANIFEST, DRAWN):
        try:
            listed = read_manifest(folder / list_name)
        except MissingInputError:
            if list_name == MANIFEST:
                states[list_name] = UNCOVERED if _complete(folder) else UNFINISHED
        except FedreError:
            states[list_name] = UNREADABLE
        else:
            for name in listed.entries:
                try:
                    states[name] = listed.state(name)
                except OSError:
                    states[name] = UNREADABLE
    if MANIFEST in states:
        return states
    for name in _present(folder, everything=attack) - states.keys():
        if TEMPORARY.fullmatch(name.rsplit("/", 1)[-1]):
            states[name] = LEFT
        elif name in DRAWINGS:
            states[name] = UNCOVERED
        else:
            states[name] = UNLISTED if attack or "/" in name or name in READ else EXTRA
    return states


def _complete(folder: Path) -> bool:
    try:
        return status_of(folder) == COMPLETE
    except (FedreError, AttributeError):
        return True  # nothing unfinished has a record that cannot be read


def _present(folder: Path, *, everything: bool) -> set[str]:
    """Names of the files that manifests should cover, and of pictures and pages."""
    found = [path for path in folder.iterdir() if path.is_file() or path.is_symlink()]
    below = ["*/**/*"] if everything else [f"{name}/**/*" for name in RECORDED]
    found += [path for pattern in below for path in folder.glob(pattern) if path.is_file()]
    return {path.relative_to(folder).as_posix() for path in found} - OURS


def _accept(folder: Path) -> None:
    """Cover a run and its finished attacks and audits as they are; all of them, or none."""
    texts: dict[Path, str] = {}
    with ExitStack() as locks:
        for one in (folder, *_made_from(folder)):
            if not _complete(one):
                continue
            locks.enter_context(lock_folder(one))
            present = _present(one, everything=one != folder)
            names = {n for n in present if not TEMPORARY.fullmatch(n.rsplit("/", 1)[-1])}
            drawings = names & DRAWINGS
            for listed, covered in ((MANIFEST, names - drawings), (DRAWN, drawings)):
                if covered or listed == MANIFEST:
                    texts[one / listed] = manifest_text(one, (one / name for name in covered))
        for path in texts:  # all files were read before anything is written
            if path.is_dir():
                raise DamagedInputError(
                    f"{path} is a folder.", next_step="Remove it, and give this command again."
                )
        for path, text in texts.items():
            write_text(path, text)
