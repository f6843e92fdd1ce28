"""Clients' steps in copies of this process, one core each: what they came to, as bytes and back.

A client's step reads nothing of other clients, so its numbers do not depend on who takes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from fedre_privacy.core import threads as cores
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.types import Emission, Mixture
from fedre_privacy.protocols.blocks.state import Client, Server

from .accuracy import Count
from .checkpoint import checkpoint_state, put_back

Done = tuple[tuple[Emission, ...], float]
"""What a client uploads with its provenance, and its mean training loss."""

MIXTURE = ("row", "sample", "weight")
"""Tensors of a mixture."""


def busiest_first(clients: Sequence[Client], chosen: Sequence[int]) -> list[int]:
    """Those with most to do first, so that cores are done at about the same time."""
    sizes = {k: sum(p.numel() for p in clients[k].model.parameters()) for k in chosen}
    return sorted(chosen, key=lambda k: sizes[k] * len(clients[k].train), reverse=True)


def train(
    step: Callable[[int], Done], clients: Sequence[Client], chosen: Sequence[int], copies: int
) -> dict[int, Done]:
    """Do a step for each of some clients; here are those clients in the end as after it.

    Args:
        step: a client's number to what its step came to; it changes no other client.
    """
    found: dict[int, Done] = {}

    def take(k: int, data: bytes) -> None:
        state, found[k] = unpack_state(data)
        put_back(state, [clients[k]], Server(), Path(f"what client {k} learned"))

    def work(k: int) -> bytes:
        done = step(k)
        return pack_state(checkpoint_state([clients[k]], Server()), done)

    left = cores.spread(work, busiest_first(clients, chosen), take, copies=copies)
    found |= {k: step(k) for k in sorted(left)}
    return {k: found[k] for k in chosen}


def count(
    look: Callable[[int], Count],
    clients: Sequence[Client],
    chosen: Sequence[int],
    copies: int,
) -> dict[int, Count]:
    """Count for each of some clients, which nothing changes."""
    found: dict[int, Count] = {}

    def take(k: int, data: bytes) -> None:
        tensors = safetensors.torch.load(data)
        correct, total = tensors["counts"].tolist()
        found[k] = Count(correct, total, tensors.get("representations"))

    def work(k: int) -> bytes:
        done = look(k)
        tensors = {"counts": torch.tensor([done.correct, done.total])}
        if done.representations is not None:
            tensors["representations"] = done.representations
        return safetensors.torch.save(tensors)

    left = cores.spread(work, busiest_first(clients, chosen), take, copies=copies)
    return found | {k: look(k) for k in sorted(left)}


def pack_state(state: Mapping[str, Tensor], done: Done) -> bytes:
    """A client's state after its step, and what the step came to."""
    emissions, loss = done
    tensors = {f"state/{name}": value for name, value in state.items()}
    heads = []
    for n, emission in enumerate(emissions):
        parts, mixture = emission.artifact.tensors(), emission.mixture
        tensors |= {f"{n}/artifact/{name}": value for name, value in parts.items()}
        if mixture is not None:
            tensors |= {f"{n}/mixture/{name}": getattr(mixture, name) for name in MIXTURE}
        rows = mixture.num_rows if mixture is not None else None
        heads.append((emission.artifact.kind, list(parts), rows))
    own = {name: value.detach().contiguous().clone() for name, value in tensors.items()}
    return safetensors.torch.save(own, metadata={"loss": repr(loss), "heads": json.dumps(heads)})


def unpack_state(data: bytes) -> tuple[dict[str, Tensor], Done]:
    """Undo `pack_state`."""
    size = int.from_bytes(data[:8], "little")
    meta = json.loads(data[8 : 8 + size])["__metadata__"]
    tensors = safetensors.torch.load(data)
    emissions = []
    for n, (kind, names, rows) in enumerate(json.loads(meta["heads"])):
        parts = {name: tensors.pop(f"{n}/artifact/{name}") for name in names}
        mixture = None
        if rows is not None:
            row, sample, weight = (tensors.pop(f"{n}/mixture/{name}") for name in MIXTURE)
            mixture = Mixture(row, sample, weight, rows)
        emissions.append(Emission(Artifact.kinds[kind].from_tensors(parts), mixture))
    state = {name.removeprefix("state/"): value for name, value in tensors.items()}
    return state, (tuple(emissions), float(meta["loss"]))


def useful(device: torch.device, clients: int, copies: int) -> bool:
    """Whether clients can and need be spread over copies."""
    return device.type == "cpu" and min(clients, copies) > 1 and cores.can_copy()
