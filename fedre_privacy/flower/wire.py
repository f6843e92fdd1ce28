"""Messages between the server and one client: a head of plain values, and artifacts, as bytes.

The bytes are those of a safetensors file whose metadata hold the head as JSON; no pickle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedre_privacy.core import errors
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import DamagedInputError, FedreError
from fedre_privacy.core.typed_yaml import check, parse_json
from fedre_privacy.protocols.blocks.state import Message

SCHEMA = 2
HELLO, FIRST, ANSWER, WORK = "hello", "first", "answer", "work"


class Order(TypedDict):
    """What the server asks of a client.

    Args:
        ask: ``hello`` (how far are you), ``first`` (what you send before the first round),
            ``answer`` (the server's answer to that) or ``work``.
        rounds: of the broadcasts that come along, ascending.
        train: the round to train and upload in; 0: none. Its broadcast comes last.
        test: whether to count right answers on the client's test samples afterwards.
        shared: whether to do so on the shared test set.
    """

    run: str
    client: int
    version: str
    schema: int
    image_shape: list[int]
    num_classes: int
    ask: str
    rounds: list[int]
    train: int
    test: bool
    shared: bool


class Reply(TypedDict):
    """What a client answers beside its upload.

    Args:
        received, trained: its last rounds; -1: none yet.
        right: right answers and samples of its test, where it was asked for.
        shared: the same of the shared test set; no answer where there is none.
        error: an error's class, its sentences and next step, in place of everything else.
    """

    received: int
    trained: int
    loss: NotRequired[float]
    right: NotRequired[tuple[int, int]]
    shared: NotRequired[tuple[int, int]]
    error: NotRequired[tuple[str, list[str], str | None]]


def pack(head: Order | Reply, messages: Sequence[Message] = ()) -> bytes:
    """Make bytes of a head and messages of artifacts."""
    tensors: dict[str, Tensor] = {}
    kinds: list[list[tuple[str, list[str]]]] = []  # names too, because safetensors sorts them
    for m, message in enumerate(messages):
        kinds.append([(artifact.kind, list(artifact.tensors())) for artifact in message])
        for n, artifact in enumerate(message):
            for name, tensor in artifact.tensors().items():
                tensors[f"{m}/{n}/{name}"] = tensor.detach().cpu().contiguous().clone()
    meta = {"head": json.dumps(head), "kinds": json.dumps(kinds)}
    return safetensors.torch.save(tensors, metadata=meta)


def unpack(data: bytes) -> tuple[Any, list[Message]]:
    """Undo `pack`; whoever reads the head checks it (`order_of`, `reply_of`).

    Raises:
        DamagedInputError: no such bytes, an unknown kind, or tensors that do not fit it.
    """
    where = "a message of the federation"
    try:
        size = int.from_bytes(data[:8], "little")
        meta = parse_json(data[8 : 8 + size].decode())["__metadata__"]
        head, kinds = parse_json(meta["head"]), parse_json(meta["kinds"])
        tensors = safetensors.torch.load(data)
        messages = [
            tuple(
                _artifact(kind, {name: tensors[f"{m}/{n}/{name}"] for name in names})
                for n, (kind, names) in enumerate(row)
            )
            for m, row in enumerate(kinds)
        ]
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedInputError(f"{where} cannot be read: {error}.") from None
    return head, messages


def order_of(head: Any) -> Order:
    """A head that the server sent, checked."""
    return check(head, Order, Path("a message of the server"))


def reply_of(head: Any) -> Reply:
    """A head that a client sent, checked.

    Raises:
        FedreError: the error that the client ended with.
    """
    reply = check(head, Reply, Path("a client's message"))
    if "error" in reply:
        raise error_of(*reply["error"])
    return reply


def error_of(name: str, problems: Sequence[str], next_step: str | None) -> FedreError:
    """An error as it was raised in another process."""
    kind = getattr(errors, name, FedreError)
    if not (isinstance(kind, type) and issubclass(kind, FedreError)):
        kind = FedreError
    return kind(*problems, next_step=next_step)


def _artifact(kind: str, tensors: dict[str, Tensor]) -> Artifact:
    if not kind or kind not in Artifact.kinds:
        raise ValueError(f"unknown kind '{kind}'")
    artifact = Artifact.kinds[kind].from_tensors(tensors)
    if problems := artifact.problems():
        raise ValueError(f"{kind}: {'; '.join(problems)}")
    return artifact
