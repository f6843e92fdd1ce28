"""What the server of another system sends and receives, kept by round and written for attacks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, GradientState, ModelState
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.types import Broadcast, Upload

from .recorder import Recorder
from .training_info import TrainingInfo, write_training_info

KINDS: dict[str, Callable[[Mapping[str, Tensor]], Artifact]] = {
    "model": ModelState, "gradient": GradientState,
}  # fmt: skip
"""What clients of another system may send, by name."""


def digest_of(tensors: Mapping[str, Tensor]) -> bytes:
    """What two messages share if they hold the same tensors."""
    found = hashlib.sha256()
    for name, value in tensors.items():
        found.update(f"{name}/{value.dtype}/{tuple(value.shape)}/".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


class UploadWriter:
    """Messages of training, with clients by number; not safe for threads by itself.

    Args:
        folder: for ``index.json``, ``training.json`` and a safetensors file a round; empty or not
            there yet.
        given: ``lr``, ``epochs`` and ``batch_size`` of local training, None where nobody says.

    Attributes:
        given: what was given. said: the same as messages say it; what is given counts more.
        nodes: the number of each client by its name.
        sizes: training images of clients, by number.

    Raises:
        ConfigError: the folder holds something.
    """

    def __init__(self, folder: Path, given: Mapping[str, float | None]) -> None:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(
                f"The folder {folder} holds something already.", next_step="Give another folder."
            )
        self.said: dict[str, float] = {}
        self.nodes: dict[str, int] = {}
        self.sizes: dict[int, int] = {}
        self._folder = folder
        self.given = {name: value for name, value in given.items() if value is not None}
        self._recorder = Recorder(folder)
        self._sent: dict[int, dict[bytes, tuple[dict[str, Tensor], set[int]]]] = {}
        self._received: dict[int, list[Upload]] = {}

    def number(self, names: Iterable[str]) -> None:
        """Give the next numbers to those that have none, in the order given."""
        for name in names:
            self.nodes.setdefault(name, len(self.nodes))

    def begin(self, round: int) -> None:
        """Forget all but this round and the one before: who is silent until now is late."""
        for old in [known for known in self._sent if known < round - 1]:
            self._sent.pop(old)
            self._received.pop(old, None)
        self._sent.setdefault(round, {})

    def send(self, round: int, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Note parameters sent to a client in a round that has begun; many may get the same."""
        sent, digest = self._sent[round], digest_of(tensors)
        if digest not in sent:
            sent[digest] = ({key: value.clone() for key, value in tensors.items()}, set())
        sent[digest][1].add(self.nodes[name])

    def sent(self, round: int, name: str) -> dict[str, Tensor] | None:
        """What a client was sent last in a round; None if nothing, or if the round is over."""
        client = self.nodes.get(name)
        found = [held for held, to in self._sent.get(round, {}).values() if client in to]
        return found[-1] if found else None

    def complete(self, round: int) -> bool:
        """Whether all clients that have a number have answered."""
        return len(self._received.get(round, [])) == len(self.nodes)

    def receive(self, round: int, name: str, artifact: Artifact) -> bool:
        """Note what a client answered; of several answers in a round the last one counts.

        Returns False where the round is over or never began, or the client has no number.
        """
        if round not in self._sent or name not in self.nodes:
            return False
        client = self.nodes[name]
        others = [upload for upload in self._received.get(round, []) if upload.client != client]
        self._received[round] = [*others, Upload(client, round, (artifact,))]
        return True

    def write(self, round: int) -> None:
        """Write a round and the files beside it; a round that was written is replaced."""
        if round not in self._sent:
            return
        uploads = sorted(self._received.get(round, []), key=lambda upload: upload.client)
        broadcasts = [
            Broadcast(round, tuple(sorted(clients)), (ModelState(tensors),))
            for tensors, clients in self._sent[round].values()
        ]
        self._recorder.write(round, uploads, broadcasts)
        self._recorder.save()
        told = {**self.said, **self.given}
        sizes = {str(client): size for client, size in sorted(self.sizes.items())}
        nodes = {str(client): name for name, client in self.nodes.items()}
        write_training_info(self._folder, TrainingInfo(sizes=sizes, nodes=nodes, **told))  # type: ignore[typeddict-item]
