"""From an observation to a reconstruction: tiles, one after another, each kept when finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.events import noted_once
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import Observation

from ..running.channels import objective_as_sent
from ..running.driver import Piece, Tick, in_tiles_of, reconstruction
from ..running.graphs import capture_for
from ..running.modules import frozen
from ..running.objectives import Objective
from ..running.probe import check_gradients
from ..running.tiles import cpu_tile, measured_rows
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
    device, restarts = context.device, budget.restarts
    objective = objective_as_sent(observation, objective)
    rows, owners = observation.target_rows()
    rows = rows.float()
    seeds = seeds_for(owners, context.seed, restarts)
    extractors = {
        key: frozen(observation.extractors[key], device)
        for key in sorted(set(owners))
        if key in observation.extractors
    }
    check_extractors(extractors, owners, rows.shape[1], observation.image_shape, device)
    check_gradients(observation, extractors)
    note = noted_once(context.report)

    def fit(some: list[int], tick: Tick) -> Piece:
        begin = None if start is None else Start(start.images[some], start.toward)
        own = [seeds[i * restarts + one] for i in some for one in range(restarts)]

        def search(some: list[int], seeds: list[int]) -> Fitted:
            repeated = [owners[i] for i in some for _ in range(restarts)]
            return fit_tile(
                prior,
                by_owner(extractors, repeated),
                rows[some].to(device),
                objective,
                budget,
                seeds=seeds,
                tick=tick,
                start=begin,
                extract_some=lambda left: by_owner(extractors, [repeated[i] for i in left]),
                capturer=capture_for(device),
                note=note,
            )

        done = search(some, own)
        stuck = (~(done.fit <= STUCK * done.trace[0])).nonzero().squeeze(1).tolist()
        if stuck and begin is None:
            anew = [derive(own[i * restarts + r], "anew") for i in stuck for r in range(restarts)]
            done = better_of(done, stuck, search([some[i] for i in stuck], anew))
        return {**vars(done), "steps": torch.tensor(done.steps)}

    if chunk is None and device.type != "cpu":
        tried = trials(prior, objective, budget, rows, owners, extractors, device)
        chunk = measured_rows(tried, device)

    found = in_tiles_of(
        fit,
        sorted(range(len(owners)), key=lambda i: owners[i]),
        context,
        steps=budget.steps,
        cpu=cpu_tile(len(owners), restarts),
        gpu=(chunk or 1) // restarts,
    )
    early = int(found["steps"].max()) < budget.steps
    return reconstruction(found, "no further improvement" if early else "budget spent")


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
