"""Everything that crossed the wire, on disk: one safetensors file a round and one JSON index.

The format is documented in docs/artifact_format.md so that other systems can write it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from fedre_privacy.core import files
from fedre_privacy.core.artifacts import RETIRED_KINDS, Artifact
from fedre_privacy.core.errors import DamagedInputError, MissingInputError
from fedre_privacy.core.types import Broadcast, Upload

SCHEMA = 1
INDEX = "index.json"

_PARTY = {"upload": "client", "broadcast": "recipients"}


class Recorder:
    """Writes the messages of a run, round by round, into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, str] = {}
        self._messages: list[dict[str, Any]] = []

    def resume(self, last_round: int) -> None:
        """Take up an index written before, forgetting rounds after `last_round`."""
        index = _read_index(self.folder)
        self._messages = [m for m in index["messages"] if m["round"] <= last_round]
        kept = {m["file"] for m in self._messages}
        self._files = {name: sha for name, sha in index["files"].items() if name in kept}

    def write(
        self, round: int, uploads: Collection[Upload], broadcasts: Collection[Broadcast]
    ) -> None:
        """Write one round; the index is replaced only after the tensors are safe."""
        file = f"r{round:04d}.safetensors"
        tensors: dict[str, Tensor] = {}
        entries = []
        for number, broadcast in enumerate(broadcasts):
            who = f"group{number}" if number else "all"
            whom = list(broadcast.recipients)
            head: dict[str, Any] = {"direction": "broadcast", "recipients": whom}
            entries.append(_entry(head, who, broadcast.round, broadcast.artifacts, file, tensors))
        for upload in uploads:
            head = {"direction": "upload", "client": upload.client}
            who = f"client{upload.client}"
            if upload.participants:
                head["participants"] = list(upload.participants)
                who = "sum"
            entries.append(_entry(head, who, upload.round, upload.artifacts, file, tensors))
        self._files[file] = files.write_tensors(self.folder / file, tensors)
        self._messages += entries
        files.write_json(
            self.folder / INDEX,
            {"schema": SCHEMA, "files": self._files, "messages": self._messages},
        )


def _entry(
    head: dict[str, Any],
    who: str,
    round: int,
    artifacts: tuple[Artifact, ...],
    file: str,
    tensors: dict[str, Tensor],
) -> dict[str, Any]:
    described = []
    for number, artifact in enumerate(artifacts):
        parts: dict[str, Any] = {}
        content = artifact.content()
        for name, tensor in artifact.tensors().items():
            key = f"{head['direction']}/{who}/{number}/{name}"
            tensors[key] = tensor
            parts[name] = {
                "key": key,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "content": str(content[name]),
            }
        described.append({"kind": artifact.kind, "tensors": parts})
    return {**head, "round": round, "file": file, "artifacts": described}


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    if not path.is_file():
        raise MissingInputError(
            f"No uploads recorded: {path} does not exist.",
            next_step="Train with fedre-train, or give a folder in the documented format.",
        )
    index = files.read_json(path)
    if isinstance(index, dict) and index.get("schema", SCHEMA) != SCHEMA:
        raise DamagedInputError(
            f"{path} has schema {index['schema']}; this version reads schema {SCHEMA}.",
            next_step="Upgrade fedre-privacy, or record the run again with this version.",
        )
    if not isinstance(index, dict) or not {"schema", "files", "messages"} <= set(index):
        raise DamagedInputError(f"{path} needs the keys schema, files and messages.")
    for number, entry in enumerate(index["messages"]):
        party = _PARTY.get(entry.get("direction"))
        if party is None or not {"round", "file", "artifacts", party} <= set(entry):
            raise DamagedInputError(
                f"{path}: message {number} needs a direction (upload or broadcast), round, file, "
                "artifacts, and client (upload) or recipients (broadcast)."
            )
    return index


def rounds_recorded(folder: Path) -> list[int]:
    """Rounds with at least one upload, ascending."""
    messages = _read_index(folder)["messages"]
    return sorted({m["round"] for m in messages if m["direction"] == "upload"})


def read_messages(
    folder: Path,
    rounds: Collection[int] | None = None,
    *,
    loaded: dict[str, dict[str, Tensor]] | None = None,
) -> tuple[list[Upload], list[Broadcast]]:
    """Read recorded messages, all or of some rounds, checking every file's hash.

    Args:
        loaded: tensors of files that were read before, by file name. These files are not read
            again; those that are read now are added.

    Raises:
        MissingInputError: nothing recorded, or a file is absent.
        DamagedInputError: altered file, unknown artifact kind, or tensors that do not fit it.
    """
    index = _read_index(folder)
    uploads: list[Upload] = []
    broadcasts: list[Broadcast] = []
    loaded = {} if loaded is None else loaded
    for entry in index["messages"]:
        if rounds is not None and entry["round"] not in rounds:
            continue
        file = entry["file"]
        if file not in loaded:
            loaded[file] = files.read_tensors(folder / file, sha256=index["files"].get(file))
        artifacts = tuple(
            _artifact(part, loaded[file], folder / file) for part in entry["artifacts"]
        )
        if entry["direction"] == "upload":
            several = tuple(entry.get("participants", ()))
            uploads.append(Upload(entry["client"], entry["round"], artifacts, participants=several))
        else:
            broadcasts.append(Broadcast(entry["round"], tuple(entry["recipients"]), artifacts))
    return uploads, broadcasts


def _artifact(part: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> Artifact:
    kind = str(part.get("kind"))
    cls = Artifact.kinds.get(kind)
    if kind in RETIRED_KINDS:
        raise DamagedInputError(
            f"{path} holds an artifact of kind '{kind}', {RETIRED_KINDS[kind]}.",
            next_step="Train again with fedre-train --restart.",
        )
    if cls is None:
        known = ", ".join(sorted(kind for kind in Artifact.kinds if kind))
        raise DamagedInputError(
            f"{path} holds an artifact of unknown kind '{kind}'. Known kinds: {known}."
        )
    try:
        values = {name: tensors[spec["key"]] for name, spec in part["tensors"].items()}
        return cls.from_tensors(values)
    except (KeyError, ValueError) as error:
        raise DamagedInputError(f"{path}: {error}.") from None
