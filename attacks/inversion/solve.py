"""From an observation to a reconstruction: tiles, one after another, each kept when finished."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from threading import Event

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.events import noted_once
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import Observation, Reconstruction

from ..running.channels import objective_as_sent
from ..running.graphs import capture_for
from ..running.objectives import Objective
from ..running.tiles import CPU_TILE, in_tiles, measured_rows, progress
from .optimise import Budget, Fitted, ImagePrior, Start, better_of, by_owner, fit_tile

STUCK = 0.5
"""A search that ends no nearer than this share of where it began is begun anew, once."""


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
    objective = objective_as_sent(observation, objective)
    rows, owners = observation.target_rows()
    order = sorted(range(len(owners)), key=lambda i: owners[i])
    rows = rows[torch.tensor(order)].float()
    owners = [owners[i] for i in order]
    if start is not None:
        start = Start(start.images[torch.tensor(order)], start.toward)
    seeds = seeds_for(owners, context.seed, budget.restarts)
    extractors = {
        key: frozen(observation.extractors[key], device)
        for key in dict.fromkeys(owners)
        if key in observation.extractors
    }

    check_extractors(extractors, owners, rows.shape[1], observation.image_shape, device)

    note = noted_once(context.report)

    def piece(first: int, last: int, stopped: Event) -> dict[str, Tensor]:
        name = f"rows-{first:06d}-{last:06d}"
        kept = context.cache.load(name)
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
                note=note,
                begin=None if start is None else start.rows(first, last),
            )
            context.cache.save(name, kept)
        return kept

    if chunk is None and device.type != "cpu":
        tried = trials(prior, objective, budget, rows, owners, extractors, device)
        chunk = measured_rows(tried, device)

    pieces = in_tiles(
        piece,
        len(owners),
        context,
        cpu=CPU_TILE // budget.restarts,
        gpu=(chunk or 1) // budget.restarts,
    )

    back = torch.tensor(order).argsort()
    joined = {key: torch.cat([p[key] for p in pieces])[back] for key in ("images", "prior", "fit")}
    spread = torch.cat([p["spread"] for p in pieces])
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
        spread=spread[back] if len(spread) else spread,
    )


def trials(
    prior: ImagePrior,
    objective: Objective,
    budget: Budget,
    rows: Tensor,
    owners: list[tuple[int, int]],
    extractors: dict[tuple[int, int], nn.Module],
    device: torch.device,
) -> list[Callable[[int], object]]:
    """Short searches of so many rows, one for each kind of extractor (by its parameters)."""
    short = replace(budget, steps=2, restarts=1)

    def of(owner: tuple[int, int]) -> Callable[[int], object]:
        row = rows[owners.index(owner)].to(device)

        def trial(count: int) -> object:
            many = row.expand(count, -1)
            return fit_tile(prior, extractors[owner], many, objective, short, seeds=range(count))

        return trial

    kinds = {sum(p.numel() for p in extractors[key].parameters()): key for key in set(owners)}
    return [of(owner) for owner in kinds.values()]


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


def seeds_for(owners: list[tuple[int, int]], seed: int, restarts: int) -> list[int]:
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
    note: Callable[[str], None],
    begin: Start | None,
) -> dict[str, Tensor]:
    tick = progress(context, stopped, of=budget.steps, first=first, rows=len(rows), total=total)

    def search(some: list[int], seeds: list[int]) -> Fitted:
        repeated = [owners[i] for i in some for _ in range(budget.restarts)]
        return fit_tile(
            prior,
            by_owner(extractors, repeated),
            rows[some].to(context.device),
            objective,
            budget,
            seeds=seeds,
            tick=tick,
            start=begin,
            extract_some=lambda kept: by_owner(extractors, [repeated[i] for i in kept]),
            capturer=capture_for(context.device),
            note=note,
        )

    done = search(list(range(len(owners))), seeds)
    stuck = (~(done.fit <= STUCK * done.trace[0])).nonzero().squeeze(1).tolist()
    if stuck and begin is None:
        wide = budget.restarts
        anew = [derive(one, "anew") for i in stuck for one in seeds[i * wide : (i + 1) * wide]]
        done = better_of(done, stuck, search(stuck, anew))
    return {
        "images": done.images,
        "prior": done.prior,
        "fit": done.fit,
        "spread": done.spread,
        "trace": done.trace,
        "trace_steps": done.trace_steps,
        "steps": torch.tensor(done.steps),
    }


def frozen(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy on a device, in evaluation mode, whose parameters take no gradient."""
    return copy.deepcopy(module).to(device).eval().requires_grad_(False)
