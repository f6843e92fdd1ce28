"""Record what somebody else's NVFLARE server sends and receives, for ``fedre-attack --uploads``.

One line of the job is added, and nothing of its algorithm changes::

    job.to_server(Capture("updates"))

In a ``config_fed_server.json`` written by hand it is a filter of both chains, with the path
``fedre_privacy.nvflare.capture.Capture``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingExtraError
from fedre_privacy.federation.upload_writer import KINDS, UploadWriter, digest_of

try:
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.event_type import EventType
    from nvflare.apis.filter import Filter
    from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import ReservedHeaderKey, Shareable
    from nvflare.app_common.app_constant import AppConstants
    from nvflare.job_config.defs import FilterType, JobTargetType
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "Recording a federation of NVIDIA FLARE needs NVIDIA FLARE (nvflare).",
        next_step="pip install 'fedre-privacy[nvflare]'",
    ) from error

Parts = list[tuple[str, DXO]]
"""Models in a message, by name."""


class _Notes:
    """What the filters of one folder share: NVFLARE makes one for each chain of a job."""

    def __init__(self, folder: Path) -> None:
        self.captured = UploadWriter(folder, {})
        self.lock = threading.Lock()
        self.round = 0
        """The latest; the first is 1."""
        self.over = False
        """Another workflow counts rounds anew; its messages would be mixed with the first's."""
        self.digest = b""
        self.tasks: dict[str, int] = {}
        self.unwritten: set[int] = set()

    def write(self) -> None:
        """Write what is not written yet."""
        for round in sorted(self.unwritten):
            self.captured.write(round)
        self.unwritten.clear()


_OPEN: WeakValueDictionary[str, _Notes] = WeakValueDictionary()
_OPENING = threading.Lock()


class Capture(Filter):  # type: ignore[misc]
    """Filter of the server that records models on their way and returns every message as it came.

    It belongs among both the task-data filters (models that are sent) and the task-result filters
    (models that come back); it sees what its places in these chains show. Rounds count from 1,
    so they have NVFLARE's numbers plus one; where messages carry none, a round begins when other
    parameters are sent, or the same to a client again. Of several workflows that count rounds
    anew the first is recorded. Clients are numbered by name where the server knows them all at
    first, later ones as they appear; ``training.json`` has the names. A round is written when all
    clients have answered, when the next one begins, and at the end of the job. What cannot be
    recorded is logged as an error and changes nothing of the training.

    Full parameters are recorded as they are. A difference (``WEIGHT_DIFF``) is recorded as
    the parameters that it leads to: what the client was sent in that round plus the difference,
    added in the type of what was sent, as NVFLARE's server adds it.

    Args:
        folder: for ``index.json``, ``training.json`` and a safetensors file a round; empty or not
            there yet, on the server's machine. A relative one counts from the working directory
            in which the filter is made: of the script where a job is made in Python, else of the
            server's process.
        lr, epochs, batch_size: of clients' local training, if known.
        kind: what clients send: ``model`` or ``gradient``.
        size_key: the entry of an answer's metadata that holds the number of a client's images.
            There is no standard one: NVFLARE's ``NUM_STEPS_CURRENT_ROUND`` counts steps, unless
            the clients' own code puts images there.
        task: messages of this task are recorded.

    Raises:
        ConfigError: the folder holds something, or the kind is not known.
    """

    def __init__(
        self,
        folder: str,
        lr: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        kind: str = "model",
        size_key: str | None = None,
        task: str = AppConstants.TASK_TRAIN,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ConfigError(
                f"Unknown kind '{kind}'.", next_step=f"Give one of: {', '.join(KINDS)}."
            )
        self.folder = str(Path(folder).absolute())  # NVFLARE changes its working directory
        self.lr, self.epochs, self.batch_size = lr, epochs, batch_size
        self.kind, self.size_key, self.task = kind, size_key, task
        with _OPENING:
            notes = _OPEN.get(self.folder) or _Notes(Path(self.folder))
            _OPEN[self.folder] = self._notes = notes
        given = {"lr": lr, "epochs": epochs, "batch_size": batch_size}
        notes.captured.given |= {key: value for key, value in given.items() if value is not None}

    def get_job_target_type(self) -> str:
        """Where NVFLARE's jobs in Python may put it."""
        return str(JobTargetType.SERVER)

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """Add it to a job in Python: to both chains of its task, unless the caller names others."""
        # the server has this package; a copy of parts of it in the job would stand before it
        job.set_app_packages([*job.job.app_packages, __name__.split(".")[0]])
        both = (FilterType.TASK_DATA, FilterType.TASK_RESULT)
        for chain in (kwargs["filter_type"],) if "filter_type" in kwargs else both:
            tasks = kwargs.get("tasks") or [self.task]
            super().add_to_fed_job(job, ctx, filter_type=chain, tasks=tasks)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Record a message if it is one of training; return it unchanged."""
        try:
            with self._notes.lock:
                self._note(shareable, fl_ctx)
        except Exception as error:  # a recording that fails must not cost the training a round
            self.log_exception(fl_ctx, f"Not recorded in {self.folder}: {error}")
        return shareable

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """At the end of the job write what is left; afterwards the folder is taken."""
        if event_type == EventType.END_RUN:
            with self._notes.lock:
                self._notes.write()
            with _OPENING:
                _OPEN.pop(self.folder, None)

    def _note(self, message: Shareable, context: FLContext) -> None:
        task = message.get_header(ReservedHeaderKey.TASK_NAME)
        if (task or context.get_prop(FLContextKey.TASK_NAME)) != self.task:
            return
        if message.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return
        if message.get_header(ReservedHeaderKey.CONTENT_TYPE) != "DXO":
            return
        parts = list(_models(from_shareable(message)))
        name = str(context.get_peer_context().get_identity_name())
        number = str(message.get_header(ReservedHeaderKey.TASK_ID))  # of one client's task
        if not parts:
            return
        if context.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT:
            self._record_sent(message, context, name, number, parts)
        else:
            self._record_received(name, number, parts)

    def _record_sent(
        self, message: Shareable, context: FLContext, name: str, number: str, parts: Parts
    ) -> None:
        notes, captured = self._notes, self._notes.captured
        if not captured.nodes and context.get_engine():
            known = [str(client.name) for client in context.get_engine().get_clients()]
            captured.number(sorted(known, key=_natural))
        captured.number([name])
        tensors = _named_arrays(parts)
        if not tensors:
            raise IncompatibleError("What was sent holds no plain arrays.")
        digest = digest_of(tensors)
        said = message.get_header(AppConstants.CURRENT_ROUND)
        said = context.get_prop(AppConstants.CURRENT_ROUND) if said is None else said
        if number in notes.tasks:  # asked for again
            round = notes.tasks[number]
        elif isinstance(said, int):
            round = said + 1
        else:
            again = digest != notes.digest or captured.sent(notes.round, name) is not None
            round = notes.round + again
        notes.over |= round < notes.round and number not in notes.tasks
        if notes.over:
            raise IncompatibleError(
                f"Round {round} comes after round {notes.round}: the job counts anew."
            )
        if round > notes.round:
            notes.write()
            notes.tasks = {key: known for key, known in notes.tasks.items() if known >= round - 1}
            notes.round = round
        notes.digest = digest
        captured.begin(round)
        captured.send(round, name, tensors)
        notes.tasks[number] = round
        notes.unwritten.add(round)

    def _record_received(self, name: str, number: str, parts: Parts) -> None:
        notes, captured = self._notes, self._notes.captured
        round = notes.tasks.get(number, 0)
        before = captured.sent(round, name)
        if before is None:
            raise IncompatibleError(
                f"The answer of {name} is late, or the filter is not among the task-data filters."
            )
        tensors = {key: value.clone() for key, value in _named_arrays(parts).items()}
        kinds = {part.data_kind for _, part in parts}
        if self.kind == "model" and DataKind.WEIGHT_DIFF in kinds:
            if len(kinds) > 1 or not tensors.keys() <= before.keys():
                raise IncompatibleError(
                    f"{name} sent differences that are not all from what it was sent."
                )
            tensors = {
                key: (before[key] + value).to(before[key].dtype) for key, value in tensors.items()
            }
        if not tensors:
            raise IncompatibleError(f"The answer of {name} holds no plain arrays.")
        captured.receive(round, name, KINDS[self.kind](tensors))
        for _, part in parts:
            size = part.get_meta_prop(self.size_key) if self.size_key else None
            if isinstance(size, int | float) and size >= 1:
                captured.sizes[captured.nodes[name]] = int(size)
        notes.unwritten.add(round)
        if captured.complete(round):
            captured.write(round)
            notes.unwritten.discard(round)


def _models(part: DXO, name: str = "") -> Iterator[tuple[str, DXO]]:
    """Parameters and differences in a message, with their names where it is a collection."""
    if part.data_kind == DataKind.COLLECTION:
        inner = part.data.items() if isinstance(part.data, dict) else enumerate(part.data)
        for key, value in inner:
            yield from _models(value, f"{name}{key}.")
    elif part.data_kind in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF) and part.data:
        yield name, part


def _named_arrays(parts: Parts) -> dict[str, Tensor]:
    """Arrays by name, on the CPU, in the same memory if they are there; what is none is left out.

    Where there are several parts, names begin with those of the parts.
    """
    found = {}
    for prefix, part in parts:
        for name, value in part.data.items():
            tensor = _tensor(value)
            if tensor is not None:
                found[f"{prefix}{name}" if len(parts) > 1 else str(name)] = tensor
    return found


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value.detach().cpu().contiguous()
    if isinstance(value, np.ndarray | np.generic | int | float):
        array = np.asarray(value)
        if array.dtype.kind in "fiub":
            plain = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
            return torch.from_numpy(plain)
    return None


def _natural(name: str) -> list[str | int]:
    """Order in which site-10 comes after site-2."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
