"""What searches for images share: extractors that fit, seeds of rows, short trials of a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.common.objectives import Objective
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import derive

from .gradient_descent import Budget, ImagePrior, fit_tile


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
