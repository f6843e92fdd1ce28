"""Everything that crossed the wire, on disk: one safetensors file a round and one JSON index.

The format is documented in docs/artifact_format.md so that other systems can write it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, cast

from msgspec import Meta
from torch import Tensor

from fedre_privacy.core import files
from fedre_privacy.core.artifacts import RETIRED_KINDS, Artifact
from fedre_privacy.core.errors import DamagedInputError, IncompatibleError, MissingInputError
from fedre_privacy.core.typed_yaml import Count, Hash, Word, check, short
from fedre_privacy.core.types import Broadcast, Upload

SCHEMA = 1
INDEX = "index.json"

_PARTY = {"upload": "client", "broadcast": "recipients"}

Client = Annotated[int, Meta(ge=-1, le=1 << 31)]
Round = Annotated[int, Meta(ge=0, le=1 << 31)]


class TensorEntry(TypedDict):
    """One tensor of an artifact, in the index."""

    key: Word
    shape: NotRequired[list[Count]]
    dtype: NotRequired[Word]
    content: NotRequired[Word]


class ArtifactEntry(TypedDict):
    """One artifact of a message, in the index."""

    kind: Word
    tensors: dict[str, TensorEntry]


class Message(TypedDict):
    """One message, in the index: `client` of an upload, `recipients` of a broadcast."""

    direction: Literal["upload", "broadcast"]
    round: Round
    file: Word
    artifacts: list[ArtifactEntry]
    client: NotRequired[Client]
    recipients: NotRequired[list[Client]]
    participants: NotRequired[list[Client]]


class Index(TypedDict):
    """``index.json``: the hash of each file, and the messages in order."""

    schema: int
    files: dict[str, Hash]
    messages: list[Message]


class Recorder:
    """Writes the messages of a run, round by round, into a folder, and their index with `save`.

    Args:
        records: whether the messages of a round are kept.
        behind: rounds whose files may still be on their way to the disk, hashed and written by
            threads of their own; `save` waits for them. 0: files are written at once, as they must
            be where clients train in copies of this process.
    """

    def __init__(
        self,
        folder: Path,
        records: Callable[[int], bool] = lambda round: True,
        *,
        behind: int = 0,
    ) -> None:
        self.folder, self.records, self.behind = folder, records, behind
        self._threads = ThreadPoolExecutor(behind) if behind else None
        self._on_their_way: dict[str, Future[str]] = {}
        self._files: dict[str, str] = {}
        self._messages: list[Message] = []

    def resume(self, last_round: int) -> None:
        """Take up an index written before, forgetting rounds after `last_round`."""
        index = read_index(self.folder)
        self._messages = [m for m in index["messages"] if m["round"] <= last_round]
        kept = {m["file"] for m in self._messages}
        self._files = {name: sha for name, sha in index["files"].items() if name in kept}

    def write(
        self, round: int, uploads: Collection[Upload], broadcasts: Collection[Broadcast]
    ) -> None:
        """Write the tensors of one round; the index knows them after `save`.

        A round that was written before is replaced, and one that is not to be kept left out.
        """
        if not self.records(round):
            return
        file = f"r{round:04d}.safetensors"
        if file in self._files:
            self._messages = [m for m in self._messages if m["file"] != file]
        tensors: dict[str, Tensor] = {}
        entries = []
        for number, broadcast in enumerate(broadcasts):
            who = f"broadcast/group{number}" if number else "broadcast/all"
            parts = _described(broadcast.artifacts, who, tensors)
            recipients = list(broadcast.recipients)
            head = {"direction": "broadcast", "recipients": recipients, "round": broadcast.round}
            entries.append({**head, "file": file, "artifacts": parts})
        for upload in uploads:
            who, several = f"upload/client{upload.client}", {}
            if upload.participants:
                who, several = "upload/sum", {"participants": list(upload.participants)}
            parts = _described(upload.artifacts, who, tensors)
            head = {"direction": "upload", "client": upload.client, **several}
            entries.append({**head, "round": upload.round, "file": file, "artifacts": parts})
        self._write(file, tensors)
        self._messages += cast(list[Message], entries)

    def _write(self, file: str, tensors: dict[str, Tensor]) -> None:
        if self._threads is None:
            self._files[file] = files.write_tensors(self.folder / file, tensors)
            return
        self._wait(most=0 if file in self._on_their_way else self.behind - 1)
        versions = [tensor._version for tensor in tensors.values()]
        self._on_their_way[file] = self._threads.submit(
            _write_unchanged, self.folder / file, tensors, versions
        )
        self._files[file] = ""

    def _wait(self, most: int) -> None:
        """Wait until at most so many files are on their way, the oldest first."""
        while len(self._on_their_way) > most:
            file, written = next(iter(self._on_their_way.items()))
            self._files[file] = written.result()
            del self._on_their_way[file]

    def save(self) -> None:
        """Replace the index; it grows with the rounds, so it is not written after each of them."""
        self._wait(most=0)
        files.write_json(
            self.folder / INDEX,
            {"schema": SCHEMA, "files": self._files, "messages": self._messages},
        )


def _write_unchanged(path: Path, tensors: dict[str, Tensor], versions: list[int]) -> str:
    """Write a file while training goes on; return its hash.

    Args:
        versions: how often each tensor had been changed in place when it was to be written.

    Raises:
        IncompatibleError: a tensor was changed in place meanwhile, by a protocol that changes what
            it was sent.
    """
    digest = files.write_tensors(path, tensors)
    for (name, tensor), version in zip(tensors.items(), versions, strict=True):
        if tensor._version != version:
            raise IncompatibleError(
                f"'{name}' was changed in place while it was written to {path}.",
                next_step="A protocol's aggregate() and receive() must copy what they change.",
            )
    return digest


def _described(
    artifacts: tuple[Artifact, ...], who: str, tensors: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """Artifacts as the index has them; their tensors are added to those of the file."""
    described = []
    for number, artifact in enumerate(artifacts):
        parts: dict[str, Any] = {}
        content = artifact.content()
        for name, tensor in artifact.tensors().items():
            key = f"{who}/{number}/{name}"
            tensors[key] = tensor
            parts[name] = {
                "key": key,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "content": str(content[name]),
            }
        described.append({"kind": artifact.kind, "tensors": parts})
    return described


def read_index(folder: Path) -> Index:
    """Read and check the index of recorded messages.

    Raises:
        MissingInputError, DamagedInputError: absent, or not as declared.
    """
    path = folder / INDEX
    if not path.is_file():
        raise MissingInputError(
            f"No uploads recorded: {path} does not exist.",
            next_step="Train with fedre-train, or give a folder in the documented format.",
        )
    found = files.read_json(path, dict)
    if found.get("schema", SCHEMA) != SCHEMA:
        raise DamagedInputError(
            f"{path} has schema {short(found['schema'])}; this version reads schema {SCHEMA}.",
            next_step="Upgrade fedre-privacy, or record the run again with this version.",
        )
    if not {"schema", "files", "messages"} <= set(found):
        raise DamagedInputError(f"{path} needs the keys schema, files and messages.")
    index = check(found, Index, path)
    for number, entry in enumerate(index["messages"]):
        party = _PARTY[entry["direction"]]
        if party not in entry:
            raise DamagedInputError(f"{path}: message {number} is an {entry['direction']} "
                                    f"without '{party}'.")  # fmt: skip
        if Path(entry["file"]).name != entry["file"]:
            raise DamagedInputError(f"{path}: message {number} names a file outside the folder.")
    return index


def rounds_recorded(folder: Path) -> list[int]:
    """Rounds with at least one upload, ascending."""
    messages = read_index(folder)["messages"]
    return sorted({m["round"] for m in messages if m["direction"] == "upload"})


def read_messages(
    folder: Path,
    rounds: Collection[int] | None = None,
    *,
    loaded: dict[str, dict[str, Tensor]] | None = None,
    faults: dict[int, str] | None = None,
) -> tuple[list[Upload], list[Broadcast]]:
    """Read recorded messages, all or of some rounds, checking every file's hash.

    Args:
        loaded: tensors of files that were read before, by file name. These files are not read
            again; those that are read now are added.
        faults: takes what is wrong with an upload that does not fit its kind, by its place among
            the uploads; it is returned with what could be read of it. None: it is refused.

    Raises:
        MissingInputError: nothing recorded, or a file is absent.
        DamagedInputError: altered file, unknown artifact kind, or tensors that do not fit it.
    """
    index = read_index(folder)
    uploads: list[Upload] = []
    broadcasts: list[Broadcast] = []
    loaded = {} if loaded is None else loaded
    for entry in index["messages"]:
        if rounds is not None and entry["round"] not in rounds:
            continue
        file = entry["file"]
        if file not in loaded:
            loaded[file] = files.read_tensors(folder / file, sha256=index["files"].get(file))
        read = [_artifact(part, loaded[file], folder / file) for part in entry["artifacts"]]
        artifacts = tuple(artifact for artifact, _ in read if artifact is not None)
        wrong = [problem for _, problem in read if problem]
        if wrong and (faults is None or entry["direction"] == "broadcast"):
            raise DamagedInputError(f"{folder / file}: {wrong[0]}.")
        if wrong and faults is not None:
            faults[len(uploads)] = "; ".join(wrong)
        if entry["direction"] == "upload":
            several = tuple(entry.get("participants", ()))
            uploads.append(Upload(entry["client"], entry["round"], artifacts, participants=several))
        else:
            broadcasts.append(Broadcast(entry["round"], tuple(entry["recipients"]), artifacts))
    return uploads, broadcasts


def _artifact(
    part: ArtifactEntry, tensors: dict[str, Tensor], path: Path
) -> tuple[Artifact | None, str]:
    """An artifact, None where its tensors are not there, and what is wrong with it."""
    kind = part["kind"]
    cls = Artifact.kinds.get(kind)
    if kind in RETIRED_KINDS:
        raise DamagedInputError(
            f"{path} holds an artifact of kind '{kind}', {RETIRED_KINDS[kind]}.",
            next_step="Train again with fedre-train --restart.",
        )
    if cls is None:
        known = ", ".join(sorted(kind for kind in Artifact.kinds if kind))
        raise DamagedInputError(
            f"{path} holds an artifact of unknown kind '{kind}'. Known kinds: {known}.",
            next_step="A kind of your own is known once its module is: --plugin MODULE.",
        )
    try:
        values = {name: _tensor(spec, tensors) for name, spec in part["tensors"].items()}
        artifact = cls.from_tensors(values)
    except (KeyError, ValueError) as error:
        return None, str(error)
    problems = artifact.problems()
    return artifact, f"{kind}: {'; '.join(problems)}" if problems else ""


def _tensor(spec: TensorEntry, tensors: dict[str, Tensor]) -> Tensor:
    """The tensor that an entry names, with the shape and type that it declares."""
    if spec["key"] not in tensors:
        raise KeyError(f"no tensor '{spec['key']}'")
    tensor = tensors[spec["key"]]
    shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if spec.get("shape", shape) != shape or spec.get("dtype", dtype) != dtype:
        raise ValueError(
            f"tensor '{spec['key']}' is {dtype} {shape}; the index says "
            f"{spec.get('dtype', dtype)} {spec.get('shape', shape)}"
        )
    return tensor
