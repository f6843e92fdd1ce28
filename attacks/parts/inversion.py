"""From an observation to a reconstruction: tiles, one after another, each kept when finished."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import OutOfMemoryError
from fedre_privacy.core.events import Event
from fedre_privacy.core.types import Observation, Reconstruction

from .objectives import Objective
from .optimise import Budget, ImagePrior, by_owner, fit_tile

CPU_TILE = 16
"""Rows per tile on a CPU: a constant, so the numbers do not depend on the chunk size asked for;
measured on two cores, larger tiles gain nothing."""
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
) -> Reconstruction:
    """Seek one image per target row, all rows of a tile at once.

    Targets are ordered by the extractor they belong to, so that a tile passes through few of
    them; results come back in the observation's order.
    """
    device = context.device
    rows, owners = observation.target_rows()
    order = sorted(range(len(owners)), key=lambda i: owners[i])
    rows = rows[torch.tensor(order)].float()
    owners = [owners[i] for i in order]
    extractors = {key: _frozen(module, device) for key, module in observation.extractors.items()
                  if key in set(owners)}  # fmt: skip

    on_cpu = device.type == "cpu"
    tile = max(1, (CPU_TILE if on_cpu else chunk or GPU_TILE) // budget.restarts)
    pieces: list[dict[str, Tensor]] = []
    start = 0
    while start < len(owners):
        stop = min(start + tile, len(owners))
        name = f"rows-{start:06d}-{stop:06d}"
        piece = context.shelf.load(name)
        if piece is None:
            try:
                piece = _fit(
                    rows[start:stop], owners[start:stop], extractors, prior, objective, budget,
                    context=context, first=start, total=len(owners),
                )  # fmt: skip
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                if tile == 1:
                    raise OutOfMemoryError(
                        "The GPU has no room for a single target.",
                        next_step=f"{start} of {len(owners)} targets are saved; free the GPU or "
                        "use --device cpu, and add --resume.",
                    ) from None
                tile //= 2
                context.report(Event("note", {"text": f"GPU memory: chunk halved to {tile}"}))
                continue
            context.shelf.save(name, piece)
        pieces.append(piece)
        start = stop

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


def _fit(
    rows: Tensor,
    owners: list[tuple[int, int]],
    extractors: dict[tuple[int, int], nn.Module],
    prior: ImagePrior,
    objective: Objective,
    budget: Budget,
    *,
    context: Context,
    first: int,
    total: int,
) -> dict[str, Tensor]:
    def tick(step: int, match: Tensor) -> None:
        context.report(
            Event("attack.step", {"step": step, "of": budget.steps, "first": first,
                                  "rows": len(rows), "total": total, "match": match})
        )  # fmt: skip

    repeated = [owner for owner in owners for _ in range(budget.restarts)]
    done = fit_tile(
        prior, by_owner(extractors, repeated), rows.to(context.device), objective, budget,
        seed=context.seed, first_index=first, tick=tick,
    )  # fmt: skip
    return {
        "images": done.images, "prior": done.prior, "fit": done.fit, "trace": done.trace,
        "trace_steps": done.trace_steps, "steps": torch.tensor(done.steps),
    }  # fmt: skip


def _frozen(module: nn.Module, device: torch.device) -> nn.Module:
    return module.to(device).eval().requires_grad_(False)
