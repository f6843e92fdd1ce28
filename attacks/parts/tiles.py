"""Work in pieces: one per core on a CPU, one after another on a GPU, each kept when finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import OutOfMemoryError
from fedre_privacy.core.events import Event as Report

CPU_TILE = 8
"""Rows per tile on a CPU, a constant: the numbers do not depend on the chunk size asked for."""

Item = TypeVar("Item")
Made = TypeVar("Made")
Piece = Callable[[int, int, Event], dict[str, Tensor]]
"""(first row, row after the last, set when work should stop) to what the rows came to."""


def in_tiles(
    piece: Piece, count: int, context: Context, *, cpu: int, gpu: int
) -> list[dict[str, Tensor]]:
    """Work on `count` rows, `cpu` or `gpu` of them at a time.

    Raises:
        OutOfMemoryError: a GPU has no room for a single row.
    """
    if context.device.type != "cpu":
        return in_turn(piece, count, max(1, gpu), context)
    tile, stopped = max(1, cpu), Event()

    def one(first: int) -> dict[str, Tensor]:
        return piece(first, min(first + tile, count), stopped)

    with single_threaded(context.device) as cores:
        return each(one, range(0, count, tile), cores, stopped)


@contextmanager
def single_threaded(device: torch.device) -> Iterator[int]:
    """Compute on one thread per piece of work; gives the number of cores to spread pieces over.

    Small convolutions gain little from a second thread, and one thread gives the same numbers on
    a machine with any number of cores. Changes nothing for a GPU.
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


def each(
    work: Callable[[Item], Made],
    items: Sequence[Item],
    cores: int,
    stopped: Event | None = None,
) -> list[Made]:
    """Do the same work on every item, one item per core at a time, in `single_threaded`.

    Args:
        stopped: set when one item fails, so that work on the others can end early.
    """
    if cores == 1:
        return [work(item) for item in items]
    stopped = stopped or Event()
    with ThreadPoolExecutor(
        max(1, min(cores, len(items))), initializer=torch.set_num_threads, initargs=(1,)
    ) as crew:
        futures = [crew.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stopped.set()
            for future in futures:
                future.cancel()
            raise


def in_turn(piece: Piece, count: int, tile: int, context: Context) -> list[dict[str, Tensor]]:
    """Work on one tile after another, halving it when the GPU is full.

    Raises:
        OutOfMemoryError: there is no room for a single row.
    """
    pieces: list[dict[str, Tensor]] = []
    start = 0
    while start < count:
        stop = min(start + tile, count)
        try:
            pieces.append(piece(start, stop, Event()))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            if tile == 1:
                raise OutOfMemoryError(
                    "The GPU has no room for a single target.",
                    next_step=f"{start} of {count} targets are saved; free the GPU or use "
                    "--device cpu, and add --resume.",
                ) from None
            tile //= 2
            context.report(Report("note", {"text": f"GPU memory: chunk halved to {tile}"}))
            continue
        start = stop
    return pieces


class Stopped(Exception):
    """Another piece failed or the user interrupted; this one is dropped."""


def progress(
    context: Context, stopped: Event, *, of: int, first: int, rows: int, total: int
) -> Callable[[int, Tensor], None]:
    """Make the function to be called with (step, match of each row) along the way.

    Args:
        of: steps in all.
        first, rows: the rows of this piece. total: of all pieces.

    Raises (when called):
        Stopped: `stopped` was set.
    """

    def tick(step: int, match: Tensor) -> None:
        if stopped.is_set():
            raise Stopped
        data = {"step": step, "of": of, "first": first, "rows": rows, "total": total}
        context.report(Report("attack.step", {**data, "match": match}))

    return tick
