"""Atomic writes and safe reads: a kill never leaves half a file, and no pickle is ever loaded."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from safetensors import SafetensorError, safe_open

from . import typed_yaml as schema
from .errors import DamagedInputError, MissingInputError
from .host import HOST
from .interrupts import check
from .os_errors import file_write_errors
from .safe_text import csv_text

if TYPE_CHECKING:  # help pages and lists read and write no table and no tensor
    import numpy as np
    import pandas as pd
    import torch

T = TypeVar("T")

MOST_SWOLLEN = 1 << 28
"""Size of a compressed file's content (bytes) above which it may not be a hundred times larger."""

UNREADABLE = (SafetensorError, ValueError, RuntimeError, TypeError, OSError, OverflowError)
"""What safetensors raises at what it cannot read."""

_PRIVATE: ContextVar[bool] = ContextVar("private", default=False)


@contextmanager
def private() -> Iterator[None]:
    """What a block writes holds truth: files for their owner alone (0600), new folders too (0700).

    Threads that the block starts do not know of it.
    """
    before = _PRIVATE.set(True)
    try:
        yield
    finally:
        _PRIVATE.reset(before)


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it into place.

    In a block of `private` nobody but its owner may read it.

    Raises:
        StorageError: the disk is full, read-only or broken; `path` is as it was before.
    """
    check()
    temporary = path.with_name(f".{os.getpid()}.{HOST}.{path.name}")
    with file_write_errors(path):
        path.parent.mkdir(mode=0o700 if _PRIVATE.get() else 0o777, parents=True, exist_ok=True)
        try:
            if _PRIVATE.get():
                temporary.touch()
                temporary.chmod(0o600)  # before it holds anything
            write(temporary)
            if _PRIVATE.get():
                temporary.chmod(0o600)
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows of equal keys as CSV, atomically; None becomes an empty cell.

    Texts are harmless in a spreadsheet, see `csv_text`.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(key) for key in rows[0]] if rows else [])
    writer.writerows([_cell(row[key]) for key in rows[0]] for row in rows)
    write_text(path, text.getvalue())


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as CSV without its index, atomically; texts as in `write_csv`."""
    import pandas as pd

    safe = frame.rename(columns=_cell)
    for at, kind in enumerate(safe.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            safe.isetitem(at, safe.iloc[:, at].map(_cell).astype(object).array)
    write_text(path, safe.to_csv(index=False))


def _cell(value: object) -> object:
    return csv_text(value) if isinstance(value, str) else value


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; NaN and infinity are refused so that any reader can parse it."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return the text that `write_json` writes."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _require(path: Path) -> None:
    if not path.is_file():
        raise MissingInputError(f"No file at {path}.")


def read_text(path: Path, most: int) -> str:
    """Read UTF-8 text of at most so many bytes.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: no text, too long, or it cannot be read.
    """
    _require(path)
    try:
        with path.open("rb") as handle:
            told = os.fstat(handle.fileno()).st_size  # 0 of files without an end, as in /proc
            data = handle.read(min(told, most + 1))
        if len(data) > most:
            raise DamagedInputError(f"{path} has more than {most:,} bytes.")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedInputError(f"{path} is no UTF-8 text: {error}.") from None
    except OSError as error:
        raise DamagedInputError(f"{path} cannot be read: {error.strerror}.") from None


def read_json(path: Path, kind: type[T]) -> T:
    """Read a JSON file whose content is as declared (see `schema.check`).

    Raises:
        MissingInputError: no such file.
        DamagedInputError: not JSON, or other content.
    """
    try:
        value = schema.parse_json(read_text(path, schema.MOST_TEXT))
    except ValueError as error:
        raise DamagedInputError(f"{path} is not valid JSON: {error}.") from None
    return schema.check(value, kind, path)


def read_table(path: Path, needed: Collection[str]) -> pd.DataFrame:
    """Read a CSV file of numbers, with at least a row and these columns.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: anything else than finite numbers and empty cells.
    """
    import numpy as np
    import pandas as pd

    text = io.StringIO(read_text(path, schema.MOST_TEXT))
    try:
        read = pd.read_csv(text)
        frame = pd.DataFrame({name: pd.to_numeric(read[name]) for name in read})
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise DamagedInputError(f"{path} is no table of numbers: {words}.") from None
    absent = [name for name in needed if name not in frame]
    if absent or not len(frame) or bool(np.isinf(frame.to_numpy(dtype=float)).any()):
        lacking = f", lacks {', '.join(absent)}" if absent else ""
        raise DamagedInputError(f"{path} is not a run's table{lacking}.")
    return frame


def read_npz(path: Path, only: Collection[str] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of an npz file: numbers and texts, no objects.

    Args:
        only: names of arrays to read; others are left empty. None: all.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: not an npz file, or one that swells beyond reason.
    """
    import numpy as np

    _require(path)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [info.file_size for info in archive.infolist()]
            if sum(sizes) > max(MOST_SWOLLEN, 100 * path.stat().st_size):
                raise ValueError(f"{path.stat().st_size:,} bytes swell to {sum(sizes):,}")
            out: dict[str, np.ndarray[Any, Any]] = {}
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if only is not None and name not in only:
                    out[name] = np.empty(0)
                    continue
                with archive.open(info) as member:
                    first = np.lib.format.read_magic(member) == (1, 0)
                    version = "1_0" if first else "2_0"
                    read = getattr(np.lib.format, f"read_array_header_{version}")
                    shape, _, dtype = read(member)
                    told = math.prod(shape) * dtype.itemsize + member.tell()
                if dtype.hasobject or min((0, *shape)) < 0 or told != info.file_size:
                    raise ValueError(f"'{info.filename}' is no plain array of its size")
                with archive.open(info) as member:
                    out[name] = np.lib.format.read_array(member, allow_pickle=False)
            return out
    except Exception as error:  # zip, zlib and numpy raise what they like
        words = " ".join(str(error).split())
        raise DamagedInputError(
            f"{path} cannot be read as a .npz file ({words}). Pickled content is never loaded "
            "here.",
            next_step="Save plain number and text arrays with numpy.savez.",
        ) from None


def write_yaml(path: Path, value: Any, *, header: str = "") -> None:
    """Write YAML atomically, keys in the order given."""
    body = yaml.safe_dump(value, sort_keys=False, default_flow_style=False)
    write_text(path, header + body)


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], *, metadata: Mapping[str, str] | None = None
) -> str:
    """Write a safetensors file atomically, the same bytes each time; return its SHA-256 (hex)."""
    import safetensors.torch

    ready = _unshared(tensors)
    extra = dict(metadata) if metadata else None
    digests: list[str] = []

    def fill(temporary: Path) -> None:
        safetensors.torch.save_file(ready, temporary, metadata=extra)
        if extra and len(extra) > 1:
            _order_metadata(temporary)
        digests.append(file_sha256(temporary))

    write_with(path, fill)
    return digests[0]


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors on the CPU, no two in the same memory, which safetensors refuses (tied weights)."""
    ready: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        ready[name] = plain.clone() if storage in seen else plain
        seen.add(storage)
    return ready


def _order_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file, which its library writes in an order of chance."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        file.seek(8)
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
        file.write(text.encode().ljust(size))


def read_tensors(
    path: Path, *, sha256: str | None = None, prefix: str = ""
) -> dict[str, torch.Tensor]:
    """Read a safetensors file onto the CPU.

    Args:
        sha256: expected hash of the whole file, when an index recorded one.
        prefix: read only tensors whose name starts so, up to its first slash (``client3/``), and
            leave the rest on disk.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: another format (pickle is named as such), truncated, or altered.
    """
    import safetensors.torch

    _require(path)
    if sha256 is not None:
        try:
            found = file_sha256(path)
        except OSError as error:
            raise DamagedInputError(f"{path} cannot be read: {error.strerror}.") from None
        if found != sha256:
            raise DamagedInputError(
                f"{path} does not match its recorded SHA-256 (expected {sha256[:12]}..., found "
                f"{found[:12]}...): the file was changed or cut short after it was written."
            )
    try:
        if not prefix:
            return safetensors.torch.load_file(path)
        handle, names = _open_safetensors(path, _marks(path.stat()))
        return {name: handle.get_tensor(name) for name in names.get(prefix, ())}
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


@lru_cache(maxsize=1)
def _open_safetensors(path: Path, marks: tuple[int, ...]) -> tuple[Any, dict[str, list[str]]]:
    """An open safetensors file, and its tensors' names by what ends with their first slash.

    The models of many clients lie in one file and are read one after another.
    """
    handle = safe_open(path, framework="pt")
    names: dict[str, list[str]] = {}
    for name in list(handle.keys()):  # type: ignore[no-untyped-call]
        names.setdefault("".join(name.partition("/")[:2]), []).append(name)
    return handle, names


def read_metadata(path: Path) -> dict[str, str]:
    """Return the string metadata of a safetensors file.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: another format, or truncated.
    """
    _require(path)
    try:
        with safe_open(path, framework="pt") as handle:
            return dict(handle.metadata() or {})
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DamagedInputError:
    # Asked only of files that are no safetensors: their first byte, a length, may be 0x80 too.
    try:
        with path.open("rb") as handle:
            head = handle.read(2)
    except OSError:
        head = b""
    if head == b"PK" or head[:1] == b"\x80":
        return DamagedInputError(
            f"{path} is a pickle (torch.save) file. Pickles can run code when opened and are "
            "never loaded here.",
            next_step="Save the tensors with safetensors.torch.save_file and give that file.",
        )
    return DamagedInputError(f"{path} is not a readable safetensors file: {error}.")


def file_sha256(path: Path) -> str:
    """Hash a file in pieces (hex), again only after it was written again.

    Raises:
        DamagedInputError: a pipe or a device, which has no end.
    """
    found = path.stat()
    if not path.is_file():
        raise DamagedInputError(f"{path} is no file.", next_step="Remove it, or restore the file.")
    if abs(time.time_ns() - found.st_ctime_ns) < CLOCK_NS:
        return _hash(path)
    return _hash_file(path, _marks(found))


def _marks(found: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is written again."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


CLOCK_NS = 100_000_000
"""Changes of a file closer together than this may bear the same time."""


@lru_cache(maxsize=100_000)
def _hash_file(path: Path, marks: tuple[int, ...]) -> str:
    return _hash(path)


def _hash(path: Path) -> str:
    with path.open("rb") as handle:
        if not os.fstat(handle.fileno()).st_size:
            if not os.fstatvfs(handle.fileno()).f_blocks:  # of no disk, and maybe without an end
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return bytes_sha256(b"")
        return hashlib.file_digest(handle, "sha256").hexdigest()


def bytes_sha256(data: bytes) -> str:
    """Hash bytes (hex)."""
    return hashlib.sha256(data).hexdigest()


def tensor_sha256(*tensors: torch.Tensor) -> str:
    """Hash the raw bytes of tensors, in order (hex)."""
    digest = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(array.reshape(-1).view("u1").data)  # no copy: images may be a mapped file
    return digest.hexdigest()


def settings_hash(value: Any) -> str:
    """Hash plain settings so that equal settings name the same folder (8 hex digits)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
