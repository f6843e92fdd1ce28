"""Seeded random streams, one per (seed, purpose, client, round, index).

A stream depends on its own key only, never on how many numbers somebody else drew before, so
results do not change with the order of clients, the chunk size, or a resume.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_GENERATORS = threading.RLock()


def derive(seed: int, purpose: str, *, client: int = -1, round: int = -1, index: int = -1) -> int:
    """Hash a stream's key into a 63-bit integer seed.

    Args:
        purpose: what the numbers are for, e.g. ``"batches"`` or ``"entangle"``.
        client, round, index: position in the run; -1 where it does not apply.
    """
    key = f"{seed}|{purpose}|{client}|{round}|{index}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1


def stream(
    seed: int, purpose: str, *, client: int = -1, round: int = -1, index: int = -1
) -> torch.Generator:
    """Return a fresh CPU generator for one key (see `derive`)."""
    generator = torch.Generator()
    generator.manual_seed(derive(seed, purpose, client=client, round=round, index=index))
    return generator


@dataclass(frozen=True)
class Pieces:
    """A tensor in pieces along its first axis, so that it need not be in memory at once.

    Args:
        shape, dtype: of the whole. parts: in order.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Iterable[torch.Tensor]


def secret(seed: int, purpose: str, *data: torch.Tensor | Pieces) -> int:
    """Hash a seed and private data into a 63-bit seed that only a holder of the data can compute.

    A run's seed is a small number that anybody can guess. What protects an upload (weights of a
    mix, noise, masks), and what the evaluator keeps to itself, is therefore drawn from streams
    that also depend on data which the attacker does not have.

    Args:
        purpose: whose secret it is, e.g. ``"client"``.
        data: tensors that the attacker does not have, in a fixed order; values on any device. A
            tensor and its pieces give the same seed.
    """
    digest = hashlib.sha256(f"{seed}|{purpose}".encode())
    for one in data:
        digest.update(f"|{tuple(one.shape)}|{one.dtype}|".encode())
        for part in one.parts if isinstance(one, Pieces) else (one,):
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "little") >> 1


@contextmanager
def seeded_generators(
    seed: int, purpose: str, *, client: int = -1, round: int = -1, index: int = -1
) -> Iterator[None]:
    """Run a block under torch's global generators seeded for one key, then restore them.

    For code that takes no generator: layer initialisation and dropout. One thread at a time has the
    generators.
    """
    started = torch.cuda.is_initialized()
    devices = list(range(torch.cuda.device_count())) if started else []
    with _GENERATORS, torch.random.fork_rng(devices=devices):
        _seed_all(derive(seed, purpose, client=client, round=round, index=index))
        yield


def _seed_all(number: int) -> None:
    """`torch.manual_seed`, which takes ten times as long: it formats the stack for late devices."""
    if torch.cuda.is_available() and not torch.cuda.is_initialized():
        torch.manual_seed(number)
        return
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
