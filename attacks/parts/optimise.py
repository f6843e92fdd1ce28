"""One optimisation loop for every attack that seeks images whose representations match targets.

Targets are cut into tiles; a tile is one tensor program (one prior, one optimiser). On a CPU its
composition is fixed, so results do not depend on the chunk size. Restarts are further rows
of the same tile. Nothing in the loop waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from .objectives import Objective, total_variation

LOGGED = 50
"""Points kept of each trace."""

LOSSES = ("log", "plain")
TINY = 1e-8
COMBINE = ("best", "mean")


class ImagePrior(Protocol):
    """A way to write images: parameters in, images in [0, 1] out."""

    def start(self, generators: Sequence[torch.Generator]) -> tuple[list[Tensor], list[Tensor]]:
        """Draw stacked parameters (trained) and constants (not), one row per generator."""
        ...

    def images(
        self, parameters: Sequence[Tensor], constants: Sequence[Tensor], progress: float
    ) -> Tensor:
        """Images (N, C, H, W); `progress` runs from 0 to 1 over the budget."""
        ...


@dataclass(frozen=True)
class Budget:
    """How long and how fast to optimise.

    Args:
        steps: optimiser steps.
        lr: Adam step size at its peak. warmup: steps of linear rise before a cosine decay to
            `lr_floor` of the peak.
        average: decay of the running mean of output images, the answer; 0 takes the last image.
        tv: weight of the total variation (mean |dx| + mean |dy| per pixel).
        loss: "log" minimises log D + tv TV, "plain" D + tv TV. Under the logarithm neither the
            gradient nor the balance with the total variation fades as the match improves.
        restarts: independent starts per target.
        combine: "best" keeps the restart with the best match, "mean" averages their images,
            which comes closer to the posterior mean and so scores a higher PSNR.
        patience: stop a tile when no target improved its match by 0.1 % for so many steps;
            0 spends the whole budget.
    """

    steps: int
    lr: float
    warmup: int = 0
    lr_floor: float = 0.1
    average: float = 0.95
    tv: float = 0.0
    loss: str = "log"
    restarts: int = 1
    combine: str = "best"
    patience: int = 0
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass(frozen=True)
class Start:
    """Pictures to begin from, and how a prior is brought to them.

    Args:
        images: (N, C, H, W) in [0, 1], one per target.
        toward: parameters, constants and images, all stacked, to parameters that write about
            these images.
    """

    images: Tensor
    toward: Callable[[list[Tensor], list[Tensor], Tensor], list[Tensor]]

    def rows(self, start: int, stop: int) -> Start:
        """Keep a range of targets."""
        return Start(self.images[start:stop], self.toward)


@dataclass(frozen=True)
class Fitted:
    """What one tile came to; rows are targets. Shapes as in `Reconstruction`."""

    images: Tensor
    prior: Tensor
    fit: Tensor
    trace: Tensor
    trace_steps: Tensor
    steps: int


def better_of(one: Fitted, rows: Sequence[int], other: Fitted) -> Fitted:
    """Take a second search of some rows where it ends nearer to what was observed.

    The pictures before the search stay those of the first.
    """
    index = torch.tensor(rows)
    first, second = (torch.where(f.isfinite(), f, torch.inf) for f in (one.fit[index], other.fit))
    nearer = second < first
    logged = min(len(one.trace_steps), len(other.trace_steps))
    where = index[nearer]
    images, fit, trace = one.images.clone(), one.fit.clone(), one.trace[:logged].clone()
    images[where], fit[where] = other.images[nearer], other.fit[nearer]
    trace[:, where] = other.trace[:logged, nearer]
    steps = max(one.steps, other.steps)
    return Fitted(images, one.prior, fit, trace, one.trace_steps[:logged], steps)


def by_owner(
    extractors: dict[tuple[int, int], nn.Module], owners: Sequence[tuple[int, int]]
) -> Callable[[Tensor], Tensor]:
    """Send each row of a tile through the extractor of its own (client, round).

    Rows of one owner are consecutive; they go through as one batch.
    """
    runs: list[tuple[nn.Module, int]] = []
    previous = None
    for owner in owners:
        if owner == previous:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((extractors[owner], 1))
        previous = owner
    sizes = [count for _, count in runs]

    def extract(images: Tensor) -> Tensor:
        pieces = images.split(sizes)
        return torch.cat([module(piece) for (module, _), piece in zip(runs, pieces, strict=True)])

    return extract


def fit_tile(
    prior: ImagePrior,
    extract: Callable[[Tensor], Tensor],
    targets: Tensor,
    objective: Objective,
    budget: Budget,
    *,
    seeds: Sequence[int],
    tick: Callable[[int, Tensor], None] = lambda step, match: None,
    start: Start | None = None,
) -> Fitted:
    """Optimise one tile of targets.

    Args:
        extract: images (n, C, H, W) to representations (n, d); n counts restarts, target by
            target.
        targets: (n / restarts, d) on the device to use.
        seeds: one per row, restarts of a target side by side.
        tick: called every few steps with the step and the matches (device tensor).
        start: pictures to begin from; None begins from the prior's own draw, which is returned as
            `prior` either way.
    """
    device, restarts = targets.device, budget.restarts
    count = len(targets)
    generators = [torch.Generator().manual_seed(one) for one in seeds]
    parameters, constants = prior.start(generators)
    parameters = [p.to(device) for p in parameters]
    constants = [c.to(device) for c in constants]
    start_images: Tensor | None = None
    if start is not None:
        with torch.no_grad():
            start_images = prior.images(parameters, constants, 0.0)
        first = start.images.to(device).repeat_interleave(restarts, 0)
        parameters = start.toward(parameters, constants, first)
    parameters = [p.detach().requires_grad_() for p in parameters]
    wanted = targets.repeat_interleave(restarts, 0)
    optimiser = torch.optim.Adam(parameters, lr=budget.lr, betas=budget.betas, foreach=True)

    every = max(1, budget.steps // LOGGED)
    trace: list[Tensor] = []
    trace_steps: list[int] = []
    average: Tensor | None = None
    best = torch.full((count * restarts,), math.inf, device=device)
    best_step = torch.zeros(count * restarts, device=device)
    step = 0
    for step in range(budget.steps):
        for group in optimiser.param_groups:
            group["lr"] = budget.lr * _schedule(step, budget)
        images = prior.images(parameters, constants, step / budget.steps)
        match = objective(extract(images), wanted)
        loss = (match + TINY).log().sum() if budget.loss == "log" else match.sum()
        if budget.tv:
            loss = loss + budget.tv * total_variation(images).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            shown = images.detach()
            if start_images is None:
                start_images = shown
            if average is None:
                average = shown.clone()
            else:
                average.lerp_(shown, 1 - budget.average)
            if budget.patience:
                better = match.detach() < best * 0.999
                best = torch.where(better, match.detach(), best)
                best_step = torch.where(better, float(step), best_step)
        if step % every == 0 or step == budget.steps - 1:
            trace.append(match.detach())
            trace_steps.append(step)
            tick(step, match.detach())
            if budget.patience and bool((step - best_step > budget.patience).all()):
                break
    if average is None or start_images is None:
        raise ValueError("a budget of zero steps fits nothing")
    with torch.no_grad():
        if budget.combine == "mean":
            mean = average.reshape(count, restarts, *average.shape[1:]).mean(1)
            average = mean.repeat_interleave(restarts, 0)
        fit = objective(extract(average), wanted)
    ranked = torch.where(fit.isfinite(), fit, torch.inf).reshape(count, restarts)
    chosen = ranked.argmin(1) + torch.arange(count, device=device) * restarts
    return Fitted(
        images=average[chosen].cpu(),
        prior=start_images[chosen].cpu(),
        fit=fit[chosen].cpu(),
        trace=torch.stack(trace)[:, chosen].cpu(),
        trace_steps=torch.tensor(trace_steps),
        steps=step + 1,
    )


def imitate(
    prior: ImagePrior,
    parameters: list[Tensor],
    constants: list[Tensor],
    images: Tensor,
    *,
    steps: int,
    lr: float,
) -> list[Tensor]:
    """Fit a prior's parameters to pictures (N, C, H, W) by squared error; returns new ones."""
    found = [p.detach().clone().requires_grad_() for p in parameters]
    optimiser = torch.optim.Adam(found, lr=lr, foreach=True)
    for step in range(steps):
        error = (prior.images(found, constants, step / steps) - images).square()
        optimiser.zero_grad(set_to_none=True)
        error.flatten(1).mean(1).sum().backward()
        optimiser.step()
    return [p.detach() for p in found]


def _schedule(step: int, budget: Budget) -> float:
    if step < budget.warmup:
        return (step + 1) / budget.warmup
    done = (step - budget.warmup) / max(1, budget.steps - budget.warmup)
    return budget.lr_floor + (1 - budget.lr_floor) * 0.5 * (1 + math.cos(math.pi * done))
