"""From an observation to a reconstruction: tiles, one after another, each kept when finished."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import IncompatibleError, OutOfMemoryError
from fedre_privacy.core.events import Event as Report
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import Observation, Reconstruction

from .objectives import Objective
from .optimise import Budget, ImagePrior, Start, by_owner, fit_tile

CPU_TILE = 8
"""Rows per tile on a CPU, a constant: the numbers do not depend on the chunk size asked for."""
GPU_TILE = 256
"""Rows per tile on a GPU unless the attack's chunk says otherwise."""


def invert(
    observation: Observation,
    context: Context,
    prior: ImagePrior,
    objective: Objective,
    budget: Budget,
    *,
    chunk: int | None,
    start: Start | None = None,
) -> Reconstruction:
    """Seek one image per target row, all rows of a tile at once.

    Targets are ordered by the extractor they belong to, so that a tile passes through few of
    them; results come back in the observation's order.

    Args:
        start: pictures to begin from, one per target in the observation's order.
    """
    device = context.device
    rows, owners = observation.target_rows()
    order = sorted(range(len(owners)), key=lambda i: owners[i])
    rows = rows[torch.tensor(order)].float()
    owners = [owners[i] for i in order]
    if start is not None:
        start = Start(start.images[torch.tensor(order)], start.toward)
    seeds = _seeds(owners, context.seed, budget.restarts)
    extractors = {
        key: frozen(module, device)
        for key, module in observation.extractors.items()
        if key in set(owners)
    }

    check_extractors(extractors, owners, rows.shape[1], observation.image_shape, device)

    def piece(first: int, last: int, stopped: Event) -> dict[str, Tensor]:
        name = f"rows-{first:06d}-{last:06d}"
        kept = context.shelf.load(name)
        if kept is None:
            kept = _fit(
                rows[first:last],
                owners[first:last],
                seeds[first * budget.restarts : last * budget.restarts],
                extractors,
                prior,
                objective,
                budget,
                context=context,
                first=first,
                total=len(owners),
                stopped=stopped,
                begin=None if start is None else start.rows(first, last),
            )
            context.shelf.save(name, kept)
        return kept

    if device.type == "cpu":
        pieces = _on_cores(piece, len(owners), max(1, CPU_TILE // budget.restarts))
    else:
        tile = max(1, (chunk or GPU_TILE) // budget.restarts)
        pieces = _in_turn(piece, len(owners), tile, context)

    back = torch.tensor(order).argsort()
    joined = {key: torch.cat([p[key] for p in pieces])[back] for key in ("images", "prior", "fit")}
    logged = min(p["trace"].shape[0] for p in pieces)
    trace = torch.cat([p["trace"][:logged] for p in pieces], dim=1)[:, back]
    diverged = ~joined["images"].isfinite().flatten(1).all(1)
    used = [int(p["steps"]) for p in pieces]
    early = max(used) < budget.steps
    return Reconstruction(
        images=joined["images"],
        prior=joined["prior"],
        fit=joined["fit"],
        trace=trace,
        trace_steps=pieces[0]["trace_steps"][:logged],
        stopped_because="no further improvement" if early else "budget spent",
        diverged=diverged,
    )


def check_extractors(
    extractors: dict[tuple[int, int], nn.Module],
    owners: list[tuple[int, int]],
    length: int,
    image_shape: tuple[int, int, int],
    device: torch.device,
) -> None:
    """Refuse targets whose extractor is absent or returns another length.

    Raises:
        IncompatibleError: all such targets, by client and round.
    """
    problems = []
    for client, round in sorted(set(owners)):
        if (client, round) not in extractors:
            problems.append(f"No extractor of client {client} in round {round} was given.")
            continue
        with torch.no_grad():
            found = extractors[client, round](torch.zeros(1, *image_shape, device=device)).shape[1]
        if found != length:
            problems.append(
                f"The extractor of client {client} in round {round} returns {found} values; its "
                f"upload holds {length}. Is it another model, or another model.dim?"
            )
    if problems:
        raise IncompatibleError(*problems)


def _seeds(owners: list[tuple[int, int]], seed: int, restarts: int) -> list[int]:
    """One seed per row and restart, keyed by the row's number among its own (client, round).

    A start then does not change with who else is attacked.
    """
    seen: Counter[tuple[int, int]] = Counter()
    out = []
    for client, round in owners:
        index = seen[client, round]
        seen[client, round] += 1
        for restart in range(restarts):
            purpose = f"attack restart {restart}"
            out.append(derive(seed, purpose, client=client, round=round, index=index))
    return out


Piece = Callable[[int, int, Event], dict[str, Tensor]]


def _on_cores(piece: Piece, count: int, tile: int) -> list[dict[str, Tensor]]:
    """Work on one tile per core, each on a single thread.

    Small convolutions gain little from a second thread, and one thread gives the same numbers on
    a machine with any number of cores.
    """
    starts = range(0, count, tile)
    cores = torch.get_num_threads()
    stopped = Event()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(
            min(cores, len(starts)), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            futures = [pool.submit(piece, s, min(s + tile, count), stopped) for s in starts]
            try:
                return [future.result() for future in futures]
            except BaseException:
                stopped.set()
                for future in futures:
                    future.cancel()
                raise
    finally:
        torch.set_num_threads(cores)


def _in_turn(piece: Piece, count: int, tile: int, context: Context) -> list[dict[str, Tensor]]:
    """Work on one tile after another, halving it when the GPU is full."""
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


class _Stopped(Exception):
    """Another tile failed or the user interrupted; this one is dropped."""


def _fit(
    rows: Tensor,
    owners: list[tuple[int, int]],
    seeds: list[int],
    extractors: dict[tuple[int, int], nn.Module],
    prior: ImagePrior,
    objective: Objective,
    budget: Budget,
    *,
    context: Context,
    first: int,
    total: int,
    stopped: Event,
    begin: Start | None,
) -> dict[str, Tensor]:
    def tick(step: int, match: Tensor) -> None:
        if stopped.is_set():
            raise _Stopped
        context.report(
            Report(
                "attack.step",
                {
                    "step": step,
                    "of": budget.steps,
                    "first": first,
                    "rows": len(rows),
                    "total": total,
                    "match": match,
                },
            )
        )

    repeated = [owner for owner in owners for _ in range(budget.restarts)]
    done = fit_tile(
        prior,
        by_owner(extractors, repeated),
        rows.to(context.device),
        objective,
        budget,
        seeds=seeds,
        tick=tick,
        start=begin,
    )
    return {
        "images": done.images,
        "prior": done.prior,
        "fit": done.fit,
        "trace": done.trace,
        "trace_steps": done.trace_steps,
        "steps": torch.tensor(done.steps),
    }


def frozen(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy on a device, in evaluation mode, whose parameters take no gradient."""
    return copy.deepcopy(module).to(device).eval().requires_grad_(False)
