"""The cores of this machine: one thread for each piece of work, and copies of this process.

Small convolutions gain little from a second thread, and one thread gives the same numbers on a
machine with any number of cores. So work is spread by whole pieces.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

FRAME = struct.Struct("<qq")
"""Before what a copy sends: the item's place in the list, and how many bytes follow."""

TOKENS = 4096
"""Most pieces that the list is handed out in: their numbers must fit a pipe."""


@contextmanager
def single_threaded(device: torch.device) -> Iterator[int]:
    """Compute on one thread per piece of work; gives the number of cores to spread pieces over.

    Changes nothing for a GPU, and gives 1.
    """
    cores = torch.get_num_threads()
    if device.type != "cpu":
        yield 1
        return
    torch.set_num_threads(1)
    try:
        yield cores
    finally:
        torch.set_num_threads(cores)


def can_copy() -> bool:
    """Whether this system can copy a process that computes."""
    return sys.platform == "linux" and hasattr(os, "fork")


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Let the system end this process, by this signal, with the one that started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(number))  # PR_SET_PDEATHSIG


def keep_memory() -> None:
    """Let this process keep memory that it gives up, for a process that soon ends.

    Otherwise the C library returns every large tensor to the system, which zeroes the same pages
    again and again: a tenth of the processor time of a small network's training.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if change is not None:
        change(-1, 1 << 30)  # M_TRIM_THRESHOLD
        change(-2, 64 << 20)  # M_TOP_PAD
        change(-3, 32 << 20)  # M_MMAP_THRESHOLD


def spread(
    work: Callable[[int], bytes], items: Sequence[int], take: Callable[[int, bytes], None], *,
    copies: int,
) -> list[int]:  # fmt: skip
    """Work on items in copies of this process, each of which takes the next one when it is free.

    A copy knows everything that this process knows now, and changes nothing of it: all that comes
    back is bytes. Memory is shared until it is changed.

    Args:
        work: called in a copy, on one thread.
        items: numbers, those that take longest first.
        take: called here with an item and what came of it, in any order.
        copies: how many processes.

    Returns:
        Items without an answer, in their order: their work failed, or the system ended the copy.
        Whoever called does them here, where an error has its own type.
    """
    size = -(-len(items) // TOKENS)
    tokens, hand = os.pipe()
    pieces = range(0, len(items), size)
    os.write(hand, b"".join(struct.pack("<i", first) for first in pieces))
    os.close(hand)
    sys.stdout.flush()
    sys.stderr.flush()
    running: dict[int, int] = {}
    left = set(items)
    try:
        for _ in range(min(copies, len(pieces))):
            ours, theirs = os.pipe()
            with warnings.catch_warnings():
                # Python 3.12 warns of threads, which torch's own, idle as long as one computes, are
                warnings.simplefilter("ignore", DeprecationWarning)
                copy = os.fork()
            if not copy:
                _work_on(work, items, size, tokens, theirs)
            os.close(theirs)
            running[ours] = copy
        for item, data in _frames(running):
            take(items[item], data)
            left.discard(items[item])
    finally:
        os.close(tokens)
        for end, copy in running.items():
            os.close(end)
            with suppress(ProcessLookupError):
                os.kill(copy, signal.SIGKILL)
            os.waitpid(copy, 0)
    return [item for item in items if item in left]


def _work_on(
    work: Callable[[int], bytes], items: Sequence[int], size: int, tokens: int, out: int
) -> None:
    """What a copy does; it never returns."""
    try:
        end_with_parent(signal.SIGKILL)
        keep_memory()
        torch.set_num_threads(1)
        while token := os.read(tokens, 4):
            (first,) = struct.unpack("<i", token)
            for place in range(first, min(first + size, len(items))):
                data = work(items[place])
                _send(out, FRAME.pack(place, len(data)))
                _send(out, data)
    finally:
        os._exit(0)


def _send(end: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(end, view) :]


def _frames(running: dict[int, int]) -> Iterator[tuple[int, bytes]]:
    """What copies send, piece by piece, until all have ended."""
    kept: dict[int, bytearray] = {end: bytearray() for end in running}
    with selectors.DefaultSelector() as ready:
        for end in running:
            ready.register(end, selectors.EVENT_READ)
        while kept:
            for key, _ in ready.select():
                end = key.fd
                data = os.read(end, 1 << 20)
                if not data:
                    ready.unregister(end)
                    del kept[end]
                    continue
                kept[end] += data
                while len(kept[end]) >= FRAME.size:
                    place, count = FRAME.unpack_from(kept[end])
                    if len(kept[end]) < FRAME.size + count:
                        break
                    frame = bytes(kept[end][FRAME.size : FRAME.size + count])
                    del kept[end][: FRAME.size + count]
                    yield place, frame
