"""Record what somebody else's Flower server sends and receives, for ``fedre-attack --uploads``.

One line of the ServerApp changes, and nothing of its algorithm::

    strategy.start(grid=capture(grid, "uploads"), ...)

It works for every ServerApp that talks through a grid: Flower's strategies, those made for its
older interface (whose parameters are lists without names), and loops of one's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, ModelState
from fedre_privacy.federation.upload_writer import UploadWriter

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

TRAIN = "train"
SAMPLES = ("num-examples", "num_examples")
"""Under these names clients report how many images they trained on."""
SAID = {
    "lr": ("lr", "learning-rate", "learning_rate"),
    "epochs": ("local-epochs", "local_epochs", "epochs"),
    "batch_size": ("batch-size", "batch_size"),
}
"""Under these names servers tell clients how to train."""


def capture(
    grid: Grid,
    folder: str | Path,
    *,
    lr: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    kind: Callable[[Mapping[str, Tensor]], Artifact] = ModelState,
) -> Grid:
    """Return a grid that does what the given one does, and records all training messages.

    Each exchange of training messages is a round; where messages carry the number of their round
    (`group_id`), that counts. What the server sends is recorded as a
    broadcast of a ``model``, what clients answer as uploads. Clients are numbered by their node's
    identifier, ascending, as they first appear. How clients train goes into ``training.json``: as
    given here, else as the server's configuration says it; the number of a client's images is
    what it reports. Everything is written after each round.

    Args:
        grid: of the ServerApp.
        folder: for ``index.json``, ``training.json`` and a safetensors file a round; empty or not
            there yet.
        lr, epochs, batch_size: of clients' local training.
        kind: what clients send, from tensors by name: `ModelState` or `GradientState`, or a
            function that makes another artifact of them.

    Raises:
        ConfigError: the folder holds something.
    """
    told = {"lr": lr, "epochs": epochs, "batch_size": batch_size}
    stand_in: Any = Capture(grid, UploadWriter(Path(folder), told), kind)
    captured: Grid = stand_in
    return captured


class Capture:
    """Stands in front of a grid; made by `capture`."""

    def __init__(
        self,
        grid: Grid,
        captured: UploadWriter,
        kind: Callable[[Mapping[str, Tensor]], Artifact],
    ) -> None:
        self._grid, self._captured, self._kind = grid, captured, kind
        self._round = 0
        self._open: dict[int, int] = {}
        self._asked: dict[str, int] = {}
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies; record both."""
        listed = list(messages)
        with self._lock:
            round = self._record_outgoing(listed)
            self._open[round] = self._open.get(round, 0) + 1
        replies = list(self._grid.send_and_receive(listed, timeout=timeout))
        with self._lock:
            for reply in replies:
                self._record_incoming(reply, round)
            self._open[round] -= 1
            if not self._open[round]:
                del self._open[round]
                self._captured.write(round)
        return replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; record them as a round of their own."""
        listed = list(messages)
        with self._lock:
            round = self._record_outgoing(listed)
        numbers = list(self._grid.push_messages(listed))
        self._asked.update(dict.fromkeys(numbers, round))
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there; record them in the round of their messages."""
        replies = list(self._grid.pull_messages(message_ids))
        with self._lock:
            rounds = set()
            for reply in replies:
                round = self._asked.get(reply.metadata.reply_to_message_id, 0)
                self._record_incoming(reply, round)
                rounds.add(round)
            for round in sorted(rounds):
                self._captured.write(round)
        return replies

    def _record_outgoing(self, messages: list[Message]) -> int:
        """Note what is sent; return the round, 0 where nothing is trained."""
        training = [m for m in messages if _trains(m) and any(m.content.array_records.values())]
        if not training:
            return 0
        named = training[0].metadata.group_id
        self._round = int(named) if named.isdecimal() else self._round + 1
        self._captured.begin(self._round)
        nodes = {message.metadata.dst_node_id for message in training}
        self._captured.number(str(node) for node in sorted(nodes))
        for message in training:
            node = str(message.metadata.dst_node_id)
            self._captured.send(self._round, node, _tensors(message.content))
        for name, value in _numbers(training[0].content.config_records).items():
            for key, names in SAID.items():
                if name in names and value > 0:
                    self._captured.said[key] = value if key == "lr" else max(1, int(value))
        return self._round

    def _record_incoming(self, reply: Message, round: int) -> None:
        """Note what a client answered."""
        if reply.has_error() or not _trains(reply):
            return
        node, tensors = str(reply.metadata.src_node_id), _tensors(reply.content)
        if not tensors or not self._captured.receive(round, node, self._kind(tensors)):
            return
        for name, value in _numbers(reply.content.metric_records).items():
            if name in SAMPLES and value >= 1:
                self._captured.sizes[self._captured.nodes[node]] = int(value)


def _trains(message: Message) -> bool:
    return str(message.metadata.message_type).split(".")[0] == TRAIN


def _tensors(content: RecordDict) -> dict[str, Tensor]:
    """All arrays of a message by name; where there are several records, with the record's name."""
    records = content.array_records
    many = len(records) > 1
    return {
        f"{record}.{name}" if many else name: torch.from_numpy(array.numpy().copy())
        for record, arrays in records.items()
        for name, array in arrays.items()
    }


def _numbers(records: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The single numbers in records, by name."""
    return {
        name: value
        for record in records.values()
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
