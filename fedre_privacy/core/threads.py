"""The cores of this machine: one thread for each piece of work, and copies of this process.

Small convolutions gain little from a second thread, and one thread gives the same numbers on a
machine with any number of cores. So work is spread by whole pieces.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import NoReturn, cast

import torch

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
    return sys.platform == "linux"


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
    work: Callable[[int], bytes],
    items: Sequence[int],
    take: Callable[[int, bytes], None],
    *,
    copies: int,
) -> list[int]:
    """Work on items in copies of this process, each of which takes the next one when it is free.

    A copy knows everything that this process knows now, and changes nothing of it: all that comes
    back is bytes. Memory is shared until it is changed.

    Args:
        work: called in a copy, on one thread.
        items: numbers, those that take longest first.
        take: called here with an item and what came of it, in any order.

    Returns:
        Items without an answer, in their order: their work failed, or the system ended the copy.
        Whoever called does them here, where an error has its own type.
    """
    size = -(-len(items) // TOKENS)
    pieces = range(0, len(items), size)
    tokens, hand = os.pipe()
    os.write(hand, b"".join(struct.pack("<i", first) for first in pieces))
    os.close(hand)
    sys.stdout.flush()
    sys.stderr.flush()
    running: dict[Connection, int] = {}
    left = set(items)
    try:
        for _ in range(min(copies, len(pieces))):
            answers, sender = Pipe(duplex=False)
            with warnings.catch_warnings():
                # Python 3.12 warns of threads, which torch's own, idle as long as one computes, are
                warnings.simplefilter("ignore", DeprecationWarning)
                copy = os.fork()
            if not copy:
                answers.close()
                _work_on(work, items, size, tokens, sender)
            sender.close()
            running[answers] = copy
        waiting = list(running)
        while waiting:
            for ready in wait(waiting):
                answers = cast(Connection, ready)
                try:
                    item = items[int.from_bytes(answers.recv_bytes())]
                    data = answers.recv_bytes()
                except (EOFError, OSError):  # the copy is done, or was ended at its work
                    waiting.remove(answers)
                    continue
                take(item, data)
                left.discard(item)
    finally:
        os.close(tokens)
        for answers, copy in running.items():
            answers.close()
            with suppress(ProcessLookupError):
                os.kill(copy, signal.SIGKILL)
            os.waitpid(copy, 0)
    return [item for item in items if item in left]


def _work_on(
    work: Callable[[int], bytes], items: Sequence[int], size: int, tokens: int, sender: Connection
) -> NoReturn:
    """What a copy does: an answer waits in its pipe until it is read."""
    try:
        end_with_parent(signal.SIGKILL)
        keep_memory()
        torch.set_num_threads(1)
        while token := os.read(tokens, 4):
            (first,) = struct.unpack("<i", token)
            for place in range(first, min(first + size, len(items))):
                data = work(items[place])
                sender.send_bytes(place.to_bytes(4))
                sender.send_bytes(data)
    finally:
        os._exit(0)
