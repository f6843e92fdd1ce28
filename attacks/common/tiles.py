"""Work in pieces: one per core on a CPU, one after another on a GPU, each kept when finished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import OutOfMemoryError
from fedre_privacy.core.events import Event
from fedre_privacy.core.memory import free_bytes

CPU_TILE = 8
"""Most rows per tile on a CPU."""
CREWS = {4: 6, 2: 4}
"""Tiles are as many as a multiple of four or of two cores, if each has so many rows then."""

GPU_ROWS = 1024
"""Most rows per tile on a GPU that has room for more; a quarter of it where room is not known."""
SHARE = 0.85
"""Of the free memory that a tile may take."""
TRIED = 4
"""Rows of the trial that measures what a row takes."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def cpu_tile(targets: int, restarts: int = 1) -> int:
    """Targets per tile on a CPU, whatever the number of cores and the chunk size asked for.

    So the numbers do not depend on these, and two or four cores have as much to do as each other.

    Args:
        restarts: rows of each target.
    """
    most = max(1, CPU_TILE // restarts)
    for crew, least in CREWS.items():
        tiles = crew * -(-targets // (crew * most))
        if targets * restarts >= least * tiles:
            return -(-targets // tiles)
    return most


def each(
    work: Callable[[Item], Made],
    items: Sequence[Item],
    cores: int,
    stopped: threading.Event | None = None,
) -> list[Made]:
    """Do the same work on every item, one item per core at a time, in `single_threaded`.

    Args:
        stopped: set when one item fails, so that work on the others can end early.
    """
    if cores == 1:
        return [work(item) for item in items]
    stopped = stopped or threading.Event()
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


def halve_tile(tile: int, context: Context, done: str) -> int:
    """Half the rows of a tile, after a GPU had no room for it.

    Args:
        done: how many targets are finished, for the refusal.

    Raises:
        OutOfMemoryError: there is no room for a single row.
    """
    torch.cuda.empty_cache()
    if tile == 1:
        raise OutOfMemoryError(
            "The GPU has no room for a single target.",
            next_step=f"{done} targets are saved; free the GPU or use --device cpu, and add "
            "--resume.",
        ) from None
    context.report(Event("note", {"text": f"GPU memory: chunk halved to {tile // 2}"}))
    return tile // 2


def rows_that_fit(free: int, per_row: int, *, share: float = SHARE, most: int) -> int:
    """Rows for a share of the free memory: a power of two from 1 to `most`.

    Powers of two, so that a tile halved later, or sized anew after an interruption when a little
    less is free, begins and ends where the tiles kept before do.

    Args:
        free, per_row: bytes.
    """
    rows = max(1, min(most, int(share * free) // max(1, per_row)))
    return 1 << (rows.bit_length() - 1)


def measured_rows(
    trials: Sequence[Callable[[int], object]], device: torch.device, *, most: int = GPU_ROWS
) -> int:
    """Size a tile by trying a few rows on a GPU; `most` / 4 where memory cannot be asked.

    Args:
        trials: each works on so many rows, all trials on other kinds of rows; the kind that takes
            most memory decides.
    """
    if device.type != "cuda":
        return max(1, most // 4)
    worst = 0
    for trial in trials:
        try:
            trial(TRIED)  # leaves the workspaces that last, which are no part of a row
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            trial(TRIED)
        except torch.cuda.OutOfMemoryError:
            return 1
        worst = max(worst, torch.cuda.max_memory_allocated(device) - before)
    torch.cuda.empty_cache()
    free = free_bytes(device) or 0
    return rows_that_fit(free, worst // TRIED, most=most)


class TileStopped(Exception):
    """Another piece failed or the user interrupted; this one is dropped."""


def progress(
    context: Context, stopped: threading.Event, *, of: int, first: int, rows: int, total: int
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
            raise TileStopped
        data = {"step": step, "of": of, "first": first, "rows": rows, "total": total}
        context.report(Event("attack.step", {**data, "match": match}))

    return tick
