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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

FRAME = struct.Struct("<qq")
"""What a copy says of an answer: the item's place in the list, and how many bytes it has."""

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
    return sys.platform == "linux" and hasattr(os, "fork") and hasattr(os, "memfd_create")


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
    running: dict[_Answers, int] = {}
    left = set(items)
    try:
        for _ in range(min(copies, len(pieces))):
            answers = _Answers()
            with warnings.catch_warnings():
                # Python 3.12 warns of threads, which torch's own, idle as long as one computes, are
                warnings.simplefilter("ignore", DeprecationWarning)
                copy = os.fork()
            if not copy:
                _work_on(work, items, size, tokens, answers)
            answers.close_for_parent()
            running[answers] = copy
        for item, data in _as_they_come(running):
            take(items[item], data)
            left.discard(items[item])
    finally:
        os.close(tokens)
        for answers, copy in running.items():
            answers.close()
            with suppress(ProcessLookupError):
                os.kill(copy, signal.SIGKILL)
            os.waitpid(copy, 0)
    return [item for item in items if item in left]


class _Answers:
    """Where a copy leaves its answers for this process: shared memory, and two pipes about it.

    The memory holds one answer at a time, so that a copy is at most one answer ahead.
    """

    def __init__(self) -> None:
        self.memory = os.memfd_create("answers")
        self.written, self.say_written = os.pipe()
        self.read, self.say_read = os.pipe()

    def close_for_copy(self) -> None:
        """Close this process's ends of the pipes, in a copy."""
        os.close(self.written)
        os.close(self.say_read)

    def close_for_parent(self) -> None:
        """Close the copy's ends of the pipes, in this process."""
        os.close(self.say_written)
        os.close(self.read)

    def write(self, place: int, data: bytes, first: bool) -> None:
        """Write an answer, once the one before was read; called in the copy."""
        if not first and not os.read(self.read, 1):
            raise BrokenPipeError("the process that asked is gone")
        view = memoryview(data)
        while view:
            view = view[os.pwrite(self.memory, view, len(data) - len(view)) :]
        os.write(self.say_written, FRAME.pack(place, len(data)))

    def next(self) -> tuple[int, bytes] | None:
        """The place and the bytes of the next answer, or None after the last."""
        frame = os.read(self.written, FRAME.size)
        if not frame:
            return None
        place, count = FRAME.unpack(frame)
        data = os.pread(self.memory, count, 0)
        while len(data) < count:  # the system reads at most 2 GiB at once
            data += os.pread(self.memory, count - len(data), len(data))
        with suppress(BrokenPipeError):  # after its last answer a copy waits for nothing
            os.write(self.say_read, b".")
        return place, data

    def close(self) -> None:
        """Close the memory and this process's ends."""
        for end in (self.memory, self.written, self.say_read):
            os.close(end)


def _work_on(
    work: Callable[[int], bytes], items: Sequence[int], size: int, tokens: int, answers: _Answers
) -> None:
    """What a copy does; it never returns."""
    try:
        end_with_parent(signal.SIGKILL)
        keep_memory()
        torch.set_num_threads(1)
        answers.close_for_copy()
        first = True
        while token := os.read(tokens, 4):
            (begin,) = struct.unpack("<i", token)
            for place in range(begin, min(begin + size, len(items))):
                answers.write(place, work(items[place]), first)
                first = False
    finally:
        os._exit(0)


def _as_they_come(running: Iterable[_Answers]) -> Iterator[tuple[int, bytes]]:
    """Answers of copies with their places, as they come, until all have ended."""
    with selectors.DefaultSelector() as ready:
        for answers in running:
            ready.register(answers.written, selectors.EVENT_READ, answers)
        while ready.get_map():
            for key, _ in ready.select():
                answer = key.data.next()
                if answer is None:
                    ready.unregister(key.fileobj)
                else:
                    yield answer
